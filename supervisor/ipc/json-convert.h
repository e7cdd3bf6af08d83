/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Between sd-json, which sd-varlink speaks, and jansson, which everything else does. */

#include <jansson.h>
#include <systemd/sd-json.h>

/* -ERANGE for an integer beyond 63 bits, -ELOOP for nesting deeper than 128, -EINVAL for text that jansson
 * cannot hold; -EILSEQ, both ways, for text with a DEL: sd-json 257 writes that as no JSON at all, and whoever reads it hangs up.
 * (-EUCLEAN, by sd-json itself, for a noncharacter.) Text of a guest is escaped long before. The result is the caller's. */
int json_from_variant(sd_json_variant *v, json_t **ret);
int json_to_variant(const json_t *j, sd_json_variant **ret);
