/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fence-api.bpf.h"
#include "net/fence-inspect.h"
#include "net/netlink.h"
#include "net/uplink.h"
#include "util/text.h"

#define MAX_DEVICES 1024 /* more than that is an error, not a fence with holes */

typedef struct Device {
        int index;
        bool again; /* could not be attached to: it counts as not seen */
        char name[IFNAMSIZ];
} Device;

typedef struct Devices {
        Device *list; /* owned */
        size_t n;
        bool full;
} Devices;

struct Uplinks {
        Devices seen;
};

static inline void devices_done(Devices *d) {
        free(d->list);
}

static int on_link(const struct nlmsghdr *nlh, void *userdata) {
        const struct ifinfomsg *info = mnl_nlmsg_get_payload(nlh);
        const struct nlattr *attr;
        Devices *d = userdata;
        Device *device;

        if (nlh->nlmsg_type != RTM_NEWLINK || (info->ifi_flags & IFF_LOOPBACK))
                return MNL_CB_OK;
        if (d->n == MAX_DEVICES) {
                d->full = true;
                return MNL_CB_OK;
        }

        device = &d->list[d->n++];
        *device = (Device) { .index = info->ifi_index };
        mnl_attr_for_each(attr, nlh, sizeof(*info))
                if (mnl_attr_get_type(attr) == IFLA_IFNAME && mnl_attr_validate(attr, MNL_TYPE_NUL_STRING) == 0)
                        text_fit(mnl_attr_get_str(attr), device->name, sizeof(device->name));
        return MNL_CB_OK;
}

static int list_devices(Devices *ret) {
        _cleanup_(netlink_closep) struct mnl_socket *nl = NULL;
        char buffer[NETLINK_MESSAGE_SIZE];
        struct nlmsghdr *nlh;
        int r;

        ret->list = calloc(MAX_DEVICES, sizeof(Device));
        if (!ret->list)
                return -ENOMEM;

        r = netlink_open(&nl, NETLINK_ROUTE);
        if (r < 0)
                return r;

        nlh = mnl_nlmsg_put_header(buffer);
        nlh->nlmsg_type = RTM_GETLINK;
        nlh->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
        nlh->nlmsg_seq = 1;
        (void) mnl_nlmsg_put_extra_header(nlh, sizeof(struct ifinfomsg));
        r = netlink_dump(nl, nlh, on_link, ret);
        if (r < 0)
                return r;
        return ret->full ? -E2BIG : 0;
}

static int explain(char **ret_reason, int error, const char *what, const char *name) {
        if (!*ret_reason)
                *ret_reason = text_format("%s%s", what, name);
        return error;
}

/* ---- attaching ---- */

static int attach(const Device *device) {
        struct bpf_link_create_opts opts = { .sz = sizeof(opts), .flags = BPF_F_BEFORE }; /* before all others */
        _cleanup_free_ char *path = NULL;
        _cleanup_fd_ int prog_fd = -1, link_fd = -1;

        path = text_format(FENCE_LINKS_DIR "/%i", device->index);
        if (!path)
                return -ENOMEM;

        prog_fd = bpf_obj_get(FENCE_PROGS_DIR "/uplink");
        if (prog_fd < 0)
                return prog_fd;
        link_fd = bpf_link_create(prog_fd, device->index, BPF_TCX_EGRESS, &opts);
        if (link_fd < 0)
                return link_fd;

        /* what was there is the link of a device that had this index before, or one that somebody detached */
        (void) unlink(path);
        return bpf_obj_pin(link_fd, path);
}

static bool is_listed(const Devices *d, long index) {
        for (size_t i = 0; i < d->n; i++)
                if (d->list[i].index == index)
                        return true;
        return false;
}

static bool is_seen(const Devices *d, int index) {
        for (size_t i = 0; i < d->n; i++)
                if (d->list[i].index == index)
                        return !d->list[i].again;
        return false;
}

static void remove_old_pins(const Devices *d) {
        _cleanup_dir_ DIR *dir = opendir(FENCE_LINKS_DIR);
        struct dirent *de;

        if (!dir)
                return;
        while ((de = readdir(dir)))
                if (de->d_name[0] != '.' && !is_listed(d, strtol(de->d_name, NULL, 10)))
                        (void) unlinkat(dirfd(dir), de->d_name, 0);
}

/* The device may have gone meanwhile: nothing leaves through it then. */
static bool is_gone(int r) {
        return r == -ENODEV;
}

int uplinks_new(Uplinks **ret) {
        *ret = calloc(1, sizeof(Uplinks));
        return *ret ? 0 : -ENOMEM;
}

Uplinks *uplinks_free(Uplinks *u) {
        if (u)
                devices_done(&u->seen);
        free(u);
        return NULL;
}

int uplinks_attach(Uplinks *u, size_t *ret_attached, char **ret_reason) {
        _cleanup_(devices_done) Devices devices = {}, old = {};
        size_t n_attached = 0;
        int result = 0, r;

        *ret_reason = NULL;
        r = list_devices(&devices);
        if (r < 0)
                return explain(ret_reason, r, "cannot list the network devices", "");

        for (size_t i = 0; i < devices.n; i++) {
                bool first;

                if (is_seen(&u->seen, devices.list[i].index))
                        continue;
                r = fence_count_in_force(devices.list[i].index, &first);
                if (r == 0) {
                        r = attach(&devices.list[i]);
                        n_attached += r >= 0;
                }
                if (r < 0 && !is_gone(r)) {
                        devices.list[i].again = true;
                        result = explain(ret_reason, r, "cannot attach program uplink to ", devices.list[i].name);
                }
        }

        remove_old_pins(&devices);
        old = u->seen;
        u->seen = devices;
        devices = (Devices) {};
        *ret_attached = n_attached;
        return result;
}

int uplink_check(char **ret_reason) {
        _cleanup_(devices_done) Devices devices = {};
        int r;

        *ret_reason = NULL;
        r = list_devices(&devices);
        if (r < 0)
                return explain(ret_reason, r, "cannot list the network devices", "");

        for (size_t i = 0; i < devices.n; i++) {
                bool first = false;

                r = fence_count_in_force(devices.list[i].index, &first);
                if (is_gone(r))
                        continue;
                if (r < 0)
                        return explain(ret_reason, r, "cannot ask for program uplink at ", devices.list[i].name);
                if (r == 0)
                        return explain(ret_reason, -ENOTRECOVERABLE, "program uplink is not in force at ", devices.list[i].name);
                if (!first)
                        return explain(ret_reason, -ENOTRECOVERABLE, "another program is asked before uplink at ", devices.list[i].name);
        }
        return 0;
}
