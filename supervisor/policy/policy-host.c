/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * host.json: what is particular to this host.
 *
 *   { "accel": "auto" | "kvm" | "tcg", "resolvers": [ ADDRESS ], "networks": [ CIDR ], "nat64": [ PREFIX ], "max_runs": 3, "boot_timeout": DURATION, "budget": BUDGET,
 *     "strict": { "units": [ UNIT ] }, "space": SPACE }
 *
 * A UNIT is a name as systemd has it, or all instances of a template: "getty@*.service". With no "strict" there is no strict mode (net/strict.c). SPACE is
 * atop policy-space.c.
 *
 * authority.json: who may do what.
 *
 *   { "description": TEXT, "submit" | "approve" | "authorize": { "groups": [ GROUP ] } }
 */

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy-internal.h"

static int parse_address(const char *s, unsigned char ret[static 16], unsigned *ret_bits) {
        if (inet_pton(AF_INET, s, ret) == 1) {
                *ret_bits = 32;
                return 0;
        }
        if (inet_pton(AF_INET6, s, ret) == 1) {
                *ret_bits = 128;
                return 0;
        }
        return -EINVAL;
}

static const char *check_address(const char *s) {
        unsigned char address[16];
        unsigned bits;

        return parse_address(s, address, &bits) < 0 ? "must be an IPv4 or IPv6 address" : NULL;
}

const char *check_network(const char *s) {
        static const char usage[] = "must be a network such as \"203.0.113.0/24\"";
        unsigned char address[16];
        char copy[64], *slash, *end;
        unsigned long prefix;
        unsigned bits;

        if (strlen(s) >= sizeof(copy))
                return usage;
        strcpy(copy, s);

        slash = strchr(copy, '/');
        if (!slash || slash[1] < '0' || slash[1] > '9')
                return usage;
        *slash++ = '\0';

        prefix = strtoul(slash, &end, 10);
        if (*end != '\0' || parse_address(copy, address, &bits) < 0 || prefix > bits)
                return usage;
        if (prefix == 0)
                return "must not be all addresses";

        for (unsigned i = (unsigned) prefix; i < bits; i++)
                if (address[i / 8] & (0x80 >> (i % 8)))
                        return "has bits set behind its prefix length";
        return NULL;
}

/* RFC 6052, 2.2. */
static const char *check_nat64(const char *s) {
        static const char *const lengths[] = { "/32", "/40", "/48", "/56", "/64", "/96" };

        if (check_network(s) || !strchr(s, ':'))
                return "must be an IPv6 prefix such as \"2001:db8:64::/96\"";
        for (size_t i = 0; i < ELEMENTSOF(lengths); i++)
                if (strcmp(strchr(s, '/'), lengths[i]) == 0)
                        return NULL;
        return "must have 32, 40, 48, 56, 64 or 96 bits";
}

static const char *check_group(const char *s) {
        if (*s == '\0' || strlen(s) > 32 || *s == '-' ||
            s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")] != '\0')
                return "must be the name of a group";
        return NULL;
}

static bool has_unit_suffix(const char *s) {
        static const char *const suffixes[] = { ".service", ".scope", ".slice", ".socket", ".mount", ".swap" };
        const char *dot = strrchr(s, '.');

        for (size_t i = 0; dot && dot != s && i < ELEMENTSOF(suffixes); i++)
                if (strcmp(dot, suffixes[i]) == 0)
                        return true;
        return false;
}

static const char *check_unit(const char *s) {
        static const char usage[] = "must be a unit such as \"ssh.service\", \"user.slice\" or \"getty@*.service\"";
        const char *star = strchr(s, '*');

        if (strlen(s) > 255 || !has_unit_suffix(s) || *s == '@' || *s == '.' ||
            s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.\\@*-")] != '\0')
                return usage;
        if (star && (star == s || star[-1] != '@' || star[1] != '.' || star + 1 != strrchr(s, '.')))
                return usage;
        if (strcmp(s, "-.slice") == 0)
                return "is every unit there is";
        if (strncmp(s, "anchorhold-runs", strlen("anchorhold-runs")) == 0)
                return "is what has grants instead";
        return NULL;
}

static void check_strict(const Node *top, HostConfig *host) {
        static const char *const known[] = { "units", NULL };
        Node n;

        if (!node_object(top, "strict", 0, &n) || !node_check_object(&n, known))
                return;
        (void) node_strings(&n, "units", NODE_REQUIRED, 0, 256, check_unit, &host->strict_units);
}

void policy_check_host(Policy *p, PolicyObject *o) {
        static const char *const known[] = { "description", "accel", "resolvers", "networks", "nat64", "max_runs", "boot_timeout", "strict", "budget", "space", NULL };
        static const char *const accels[] = { "auto", "kvm", "tcg", NULL };
        Node top = node_top(p, o);
        HostConfig host = p->host;
        const char *text;

        if (!node_check_object(&top, known))
                return;

        (void) node_string(&top, "description", 0, &text);
        (void) node_choice(&top, "accel", 0, accels, &host.accel);
        (void) node_strings(&top, "resolvers", 0, 0, 8, check_address, &host.resolvers);
        (void) node_strings(&top, "networks", 0, 0, 256, check_network, &host.networks);
        (void) node_strings(&top, "nat64", 0, 0, 16, check_nat64, &host.nat64);
        (void) node_uint(&top, "max_runs", 0, 1, 1000, &host.max_runs);
        (void) node_duration(&top, "boot_timeout", 0, 1, POLICY_BOOT_TIMEOUT_MAX_S, &host.boot_timeout_s);
        check_strict(&top, &host);
        (void) policy_read_budget(&top, true, &host.budget);
        policy_read_space(&top, &host.space);

        if (!o->reason)
                p->host = host;
}

void policy_check_authority(Policy *p, PolicyObject *o) {
        static const char *const known[] = { "description", "submit", "approve", "authorize", NULL };
        static const char *const known_rule[] = { "groups", NULL };
        Node top = node_top(p, o);
        const json_t *groups;
        const char *text;

        if (!node_check_object(&top, known))
                return;

        (void) node_string(&top, "description", 0, &text);
        for (size_t i = 1; known[i]; i++) {
                Node n;

                if (node_object(&top, known[i], 0, &n) && node_check_object(&n, known_rule))
                        (void) node_strings(&n, "groups", NODE_REQUIRED, 0, 64, check_group, &groups);
        }
}
