/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "api/authority.h"

#include <errno.h>

#include "util/json.h"
#include "util/text.h"

static int deny(char **ret_reason, const char *format, const char *act, const char *more) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        *ret_reason = text_format(format, act, more);
#pragma GCC diagnostic pop
        return *ret_reason ? -EACCES : -ENOMEM;
}

/* "a, b or c" */
static char *join(const json_t *groups) {
        size_t n = json_array_size(groups), size;
        char *text = NULL;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return NULL;
        for (size_t i = 0; i < n; i++)
                (void) fprintf(f, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", json_string_value(json_array_get(groups, i)));
        if (fclose(f) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

int authority_check(const Policy *p, const char *act, const Peer *peer, char **ret_reason) {
        const json_t *authority = policy_authority(p), *groups, *group;
        _cleanup_free_ char *names = NULL;
        size_t i;

        if (peer->roles & PEER_ROOT)
                return 0;
        if (!authority)
                return deny(ret_reason, "nobody but root may %s: authority.json is missing or has a finding%s; see \"anchorctl policy check\"", act, "");

        groups = json_object_get(json_object_get(authority, act), "groups");
        if (json_array_size(groups) == 0)
                return deny(ret_reason, "nobody but root may %s: authority.json lists no group for it%s", act, "");
        json_array_foreach(groups, i, group)
                if (peer_is_in_group(peer, json_string_value(group)))
                        return 0;

        names = join(groups);
        return names ? deny(ret_reason, "only members of %2$s may %1$s, says authority.json", act, names) : -ENOMEM;
}
