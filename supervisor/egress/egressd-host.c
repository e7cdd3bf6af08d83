/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What egressd takes from the host: host.json, read anew when a run is registered, and, unless that names resolvers, /etc/resolv.conf,
 * looked at before every name that is resolved, because systemd-resolved, a DHCP client or an operator may replace it at any
 * time (a link to /run/systemd/resolve/ is followed: the stub, 127.0.0.53, is a server like any other here).
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "egress/egressd-private.h"
#include "util/io.h"
#include "util/log.h"

enum { RESOLV_CONF_MAX_SIZE = 64 * 1024 };

static const char resolv_conf[] = "/etc/resolv.conf";

static void set_servers(Egressd *e, const ResolverServer *servers, size_t n) {
        if (n == 0)
                log_warning("neither host.json nor %s names a resolver: no name will resolve", resolv_conf);
        resolver_set_servers(e->resolver, servers, n);
}

/* A file that is replaced is another file; one that is written to has another time or size. */
static bool is_same_file(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
               a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void read_resolv_conf(Egressd *e) {
        ResolverServer servers[RESOLVER_SERVERS_MAX];
        _cleanup_free_ char *text = NULL;
        size_t size, n = 0;

        if (io_read_file(AT_FDCWD, resolv_conf, RESOLV_CONF_MAX_SIZE, &text, &size) >= 0)
                n = resolver_parse_resolv_conf(text, servers);
        set_servers(e, servers, n);
}

void egressd_refresh_resolvers(Egressd *e) {
        struct stat now = {};

        if (e->resolvers_configured)
                return;

        (void) stat(resolv_conf, &now); /* all zero if there is none */
        if (is_same_file(&now, &e->resolv_conf))
                return;

        log_info("%s has changed", resolv_conf);
        e->resolv_conf = now;
        read_resolv_conf(e);
}

static void configure_resolvers(Egressd *e, const json_t *list) {
        ResolverServer servers[RESOLVER_SERVERS_MAX];
        size_t n = 0;

        for (size_t i = 0; i < json_array_size(list) && n < RESOLVER_SERVERS_MAX; i++)
                if (address_parse(json_string_value(json_array_get(list, i)), &servers[n].address) >= 0)
                        servers[n++].port = 53;

        e->resolvers_configured = json_array_size(list) > 0;
        if (e->resolvers_configured) {
                set_servers(e, servers, n);
                return;
        }
        if (stat(resolv_conf, &e->resolv_conf) < 0)
                e->resolv_conf = (struct stat) {};
        read_resolv_conf(e);
}

static size_t read_ranges(const json_t *list, AddressRange *ret, size_t max) {
        size_t n = 0;

        for (size_t i = 0; i < json_array_size(list); i++) {
                const char *text = json_string_value(json_array_get(list, i));

                if (n >= max || address_parse_range(text, &ret[n]) < 0)
                        log_warning("host.json: the network %s is ignored", text);
                else
                        n++;
        }
        return n;
}

int egressd_read_host(Egressd *e) {
        _cleanup_(policy_freep) Policy *set = NULL;
        _cleanup_free_ char *reason = NULL;
        const HostConfig *host;
        int r;

        /* this file alone: the policies, which may be large, are for a thread */
        r = policy_load_host(&set, "", &reason);
        if (r == -EINVAL)
                log_warning("%s; %s", reason, e->host_known ? "what it said before still holds"
                                                            : "no network is named, no IPv6 address can be judged, and resolvers are those of the system");
        else if (r < 0)
                return r;
        if (!set) {
                if (!e->host_known)
                        configure_resolvers(e, NULL);
                return 0;
        }

        e->host_known = true;
        host = policy_host(set);
        configure_resolvers(e, host->resolvers);

        e->n_networks = read_ranges(host->networks, e->networks, EGRESSD_NETWORKS_MAX);
        e->n_nat64 = read_ranges(host->nat64, e->nat64, EGRESSD_NAT64_MAX);
        e->nat64_named = host->nat64;
        return 0;
}
