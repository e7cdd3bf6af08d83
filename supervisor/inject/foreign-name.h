/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where credentials usually stand, whoever's they are. Pure. */

#include <stdbool.h>

#include "inject/credential.h"

/* A field of a head. */
bool foreign_is_field(const char *name);
/* A parameter of a target, by its decoded name. `c`: the run's credential for that host. */
bool foreign_is_parameter(const InjectCredential *c, const char *name);
