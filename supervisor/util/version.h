/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#define ANCHORHOLD_VERSION "0.1"
