/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "net/check.h"

static const char *const layers[CHECK_N_LAYERS] = { "guest-network", "cgroup", "policy" };
static const char *const probes[CHECK_N_PROBES] = { "metadata", "loopback", "host-address", "unlisted-name", "unlisted-port", "allowed-control" };
/* What can be tried on any host, at any time. A host may have no address, and the control needs heartbeats. */
static const CheckProbe always[] = { CHECK_METADATA, CHECK_LOOPBACK, CHECK_UNLISTED_NAME, CHECK_UNLISTED_PORT };
static const char *const results[] = { "not tried", "denied", "allowed" };

CheckProbe check_probe_of(const EgressNever *n) {
        switch (n->kind) {
        case EGRESS_NEVER_METADATA:
                return CHECK_METADATA;
        case EGRESS_NEVER_LOOPBACK:
                return CHECK_LOOPBACK;
        case EGRESS_NEVER_UNLISTED:
                break;
        }
        return CHECK_UNLISTED_NAME;
}

const char *check_probe_name(CheckProbe p) {
        return probes[p];
}

int check_fail(CheckTable *t, int error, const char *format, ...) {
        va_list ap;

        if (t->reason[0])
                return error;
        va_start(ap, format);
        (void) vsnprintf(t->reason, sizeof(t->reason), format, ap);
        va_end(ap);
        return error;
}

bool check_disagrees(const CheckTable *t, char *ret, size_t size) {
        for (int l = 0; l < CHECK_N_LAYERS; l++)
                for (int p = 0; p < CHECK_N_PROBES; p++) {
                        CheckResult wanted = p == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;

                        if (t->results[l][p] == CHECK_NOT_TRIED || t->results[l][p] == wanted)
                                continue;
                        (void) snprintf(ret, size, "layer %s: %s is %s", layers[l], probes[p], results[t->results[l][p]]);
                        return true;
                }

        if (t->reason[0]) {
                (void) snprintf(ret, size, "%s", t->reason);
                return true;
        }
        return false;
}

json_t *check_to_json(const CheckTable *t) {
        _cleanup_json_ json_t *list = json_array();

        for (int l = 0; l < CHECK_N_LAYERS; l++)
                for (int p = 0; p < CHECK_N_PROBES; p++)
                        if (t->results[l][p] != CHECK_NOT_TRIED &&
                            json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "layer", layers[l], "probe", probes[p], "result",
                                                                  results[t->results[l][p]])) < 0)
                                return NULL;
        return TAKE_PTR(list);
}

static int find_name(const char *const *names, size_t n, const char *name) {
        for (size_t i = 0; name && i < n; i++)
                if (strcmp(names[i], name) == 0)
                        return (int) i;
        return -EBADMSG;
}

int check_from_json(CheckTable *t, CheckLayer layer, const json_t *list, const char *reason) {
        CheckResult found[CHECK_N_PROBES] = {};
        const json_t *value;
        size_t i;

        if (layer >= CHECK_N_LAYERS || !json_is_array(list) || !reason)
                return -EBADMSG;

        json_array_foreach(list, i, value) {
                int l = find_name(layers, ELEMENTSOF(layers), json_string_value(json_object_get(value, "layer"))),
                    p = find_name(probes, ELEMENTSOF(probes), json_string_value(json_object_get(value, "probe"))),
                    r = find_name(results, ELEMENTSOF(results), json_string_value(json_object_get(value, "result")));

                if (l != (int) layer || p < 0 || r < 0)
                        return -EBADMSG;
                found[p] = (CheckResult) r;
        }

        memcpy(t->results[layer], found, sizeof(found));
        if (*reason) {
                (void) check_fail(t, 0, "%s", reason);
                return 0;
        }

        /* who gives no reason has tried all of these: a layer of which nothing is known does not agree */
        for (size_t p = 0; p < ELEMENTSOF(always); p++)
                if (found[always[p]] == CHECK_NOT_TRIED)
                        (void) check_fail(t, 0, "layer %s: %s was not tried", layers[layer], probes[always[p]]);
        return 0;
}
