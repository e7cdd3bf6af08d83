/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "policy/policy.h"

/* Digits only: no sign, no blank, no other base. Moves *s behind them. */
static int parse_digits(const char **s, uint64_t *ret) {
        uint64_t v = 0;

        if (!isdigit((unsigned char) **s))
                return -EINVAL;

        for (; isdigit((unsigned char) **s); (*s)++)
                if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t) (**s - '0'), &v))
                        return -ERANGE;

        *ret = v;
        return 0;
}

int policy_parse_size(const char *s, uint64_t *ret) {
        static const char units[] = "BKMGT";
        const char *unit;
        uint64_t v;
        int r;

        r = parse_digits(&s, &v);
        if (r < 0)
                return r;

        if (*s == '\0' || s[1] != '\0')
                return -EINVAL;

        unit = strchr(units, *s);
        if (!unit)
                return -EINVAL;

        if (__builtin_mul_overflow(v, UINT64_C(1) << (10 * (unit - units)), &v))
                return -ERANGE;

        *ret = v;
        return 0;
}

int policy_parse_duration(const char *s, uint64_t *ret) {
        static const struct {
                const char *name;
                uint64_t seconds;
        } units[] = {
                { "min", 60 }, /* before "m…" could mean anything else */
                { "s", 1 },
                { "h", 3600 },
                { "d", 86400 },
        };
        uint64_t sum = 0;
        int r;

        do {
                uint64_t v;
                size_t i;

                r = parse_digits(&s, &v);
                if (r < 0)
                        return r;

                for (i = 0; i < ELEMENTSOF(units); i++)
                        if (strncmp(s, units[i].name, strlen(units[i].name)) == 0)
                                break;
                if (i == ELEMENTSOF(units))
                        return -EINVAL;

                s += strlen(units[i].name);
                if (__builtin_mul_overflow(v, units[i].seconds, &v) || __builtin_add_overflow(sum, v, &sum))
                        return -ERANGE;

                if (*s == ' ')
                        s++;
                else if (*s != '\0' && !isdigit((unsigned char) *s))
                        return -EINVAL;
        } while (*s != '\0');

        *ret = sum;
        return 0;
}
