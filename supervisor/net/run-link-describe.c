/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What run-link.c makes, read back as text: two namespaces that it made have the same. */

#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>

#include "net/netlink.h"
#include "net/run-link.h"
#include "util/text.h"

/* One kind of object: the size of its header, what of that header counts, and which attributes do. */
typedef struct Kind {
        const char *name;
        uint16_t request;
        size_t header;
        void (*head)(FILE *f, const void *header);
        bool (*attribute)(uint16_t type);
} Kind;

typedef struct Description {
        FILE *f;
        const Kind *kind;
} Description;

static void link_head(FILE *f, const void *header) {
        const struct ifinfomsg *m = header;

        fprintf(f, " %i type %u %s", m->ifi_index, m->ifi_type, m->ifi_flags & IFF_UP ? "up" : "down");
}

static bool link_attribute(uint16_t type) {
        return type == IFLA_IFNAME || type == IFLA_MASTER || type == IFLA_LINK || type == IFLA_XDP;
}

static void address_head(FILE *f, const void *header) {
        const struct ifaddrmsg *m = header;

        fprintf(f, " %u family %u prefix %u scope %u", m->ifa_index, m->ifa_family, m->ifa_prefixlen, m->ifa_scope);
}

static bool address_attribute(uint16_t type) {
        return type == IFA_LOCAL || type == IFA_ADDRESS;
}

static void route_head(FILE *f, const void *header) {
        const struct rtmsg *m = header;

        fprintf(f, " family %u to %u table %u type %u scope %u", m->rtm_family, m->rtm_dst_len, m->rtm_table, m->rtm_type, m->rtm_scope);
}

static bool route_attribute(uint16_t type) {
        return type == RTA_DST || type == RTA_OIF || type == RTA_GATEWAY || type == RTA_PREFSRC || type == RTA_MULTIPATH;
}

static void rule_head(FILE *f, const void *header) {
        const struct fib_rule_hdr *m = header;

        fprintf(f, " family %u from %u to %u table %u action %u flags %u", m->family, m->src_len, m->dst_len, m->table, m->action, m->flags);
}

static bool rule_attribute(uint16_t type) {
        return true;
}

static const Kind kinds[] = {
        { "link",    RTM_GETLINK,  sizeof(struct ifinfomsg),    link_head,    link_attribute    },
        { "address", RTM_GETADDR,  sizeof(struct ifaddrmsg),    address_head, address_attribute },
        { "route",   RTM_GETROUTE, sizeof(struct rtmsg),        route_head,   route_attribute   },
        { "rule",    RTM_GETRULE,  sizeof(struct fib_rule_hdr), rule_head,    rule_attribute    },
};

static int on_object(const struct nlmsghdr *nlh, void *userdata) {
        const Description *d = userdata;
        const struct nlattr *attr;

        fputs(d->kind->name, d->f);
        d->kind->head(d->f, mnl_nlmsg_get_payload(nlh));
        mnl_attr_for_each(attr, nlh, d->kind->header) {
                const uint8_t *value = mnl_attr_get_payload(attr);
                uint16_t type = mnl_attr_get_type(attr);

                if (!d->kind->attribute(type))
                        continue;
                fprintf(d->f, " %u=", type);
                for (uint16_t i = 0; i < mnl_attr_get_payload_len(attr); i++)
                        fprintf(d->f, "%02x", value[i]);
        }
        fputc('\n', d->f);
        return MNL_CB_OK;
}

int run_link_describe(FILE *f) {
        int r;

        r = run_link_describe_sysctls(f);
        if (r < 0)
                return r;

        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
                Description d = { .f = f, .kind = &kinds[i] };
                char buffer[NETLINK_MESSAGE_SIZE];
                struct nlmsghdr *nlh;

                r = netlink_open(&nl, NETLINK_ROUTE);
                if (r < 0)
                        return r;
                nlh = mnl_nlmsg_put_header(buffer);
                nlh->nlmsg_type = kinds[i].request;
                nlh->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
                nlh->nlmsg_seq = 1;
                (void) mnl_nlmsg_put_extra_header(nlh, kinds[i].header);
                r = netlink_dump(nl, nlh, on_object, &d);
                if (r < 0)
                        return r;
        }
        return 0;
}
