/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Whatever else the host's rules reject is answered, and who sent it hears so at once. Nobody may answer a packet to a broadcast address or to a group
 * (RFC 1122, 3.2.2), so that its sender would wait for ever. Therefore the guest's own kernel refuses these, with EPERM: by a
 * program at the root of its cgroups, since that also sees sockets that are bound to a device or an address, for which the kernel asks no route.
 *
 * This is a courtesy inside the guest. Its root may detach the program, or go around it with a packet socket; then the host drops and logs such packets as any
 * others.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/ip.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/guest.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define LOOPBACK_INDEX 1

enum { CTX = BPF_REG_1, HEAD = BPF_REG_2, END = BPF_REG_3, VALUE = BPF_REG_4, LIMIT = BPF_REG_5 };

#define SET(reg, value) { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (reg), .imm = (value) }
#define COPY(reg, from) { .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = (reg), .src_reg = (from) }
#define LOAD(reg, from, at) { .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = (reg), .src_reg = (from), .off = (int16_t) (at) }
#define ADD(reg, value) { .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = (reg), .imm = (value) }
#define AND(reg, value) { .code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = (reg), .imm = (value) }
#define SKIP_IF(op, reg, value, n) { .code = BPF_JMP32 | (op) | BPF_K, .dst_reg = (reg), .off = (n), .imm = (int32_t) (value) }
#define SKIP_IF_ABOVE(reg, other, n) { .code = BPF_JMP | BPF_JGT | BPF_X, .dst_reg = (reg), .src_reg = (other), .off = (n) }
#define RETURN { .code = BPF_JMP | BPF_EXIT }

static int load_program(struct in_addr broadcast) {
        /* a word of the header is compared as it lies there */
        const struct bpf_insn program[] = {
                SET(BPF_REG_0, 1),
                LOAD(VALUE, CTX, offsetof(struct __sk_buff, ifindex)),
                SKIP_IF(BPF_JEQ, VALUE, LOOPBACK_INDEX, 13),
                LOAD(VALUE, CTX, offsetof(struct __sk_buff, protocol)),
                SKIP_IF(BPF_JNE, VALUE, htons(0x0800), 11),
                LOAD(HEAD, CTX, offsetof(struct __sk_buff, data)),
                LOAD(END, CTX, offsetof(struct __sk_buff, data_end)),
                COPY(LIMIT, HEAD),
                ADD(LIMIT, sizeof(struct iphdr)),
                SKIP_IF_ABOVE(LIMIT, END, 6),
                LOAD(VALUE, HEAD, offsetof(struct iphdr, daddr)),
                SKIP_IF(BPF_JEQ, VALUE, INADDR_BROADCAST, 3),
                SKIP_IF(BPF_JEQ, VALUE, broadcast.s_addr, 2),
                AND(VALUE, htonl(0xf0000000)),
                SKIP_IF(BPF_JNE, VALUE, htonl(0xe0000000), 1),
                SET(BPF_REG_0, 0),
                RETURN,
        };
        union bpf_attr attr = {
                .prog_type = BPF_PROG_TYPE_CGROUP_SKB,
                .expected_attach_type = BPF_CGROUP_INET_EGRESS,
                .insns = (uintptr_t) program,
                .insn_cnt = ELEMENTSOF(program),
                .license = (uintptr_t) "LGPL-2.1-or-later",
                .prog_name = "unicast_only",
        };
        long fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));

        return fd < 0 ? -errno : (int) fd;
}

int guest_refuse_groups(struct in_addr broadcast) {
        _cleanup_fd_ int cgroup_fd = -1, program_fd = -1;
        union bpf_attr attr;

        cgroup_fd = open(CGROUP_ROOT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (cgroup_fd < 0)
                return -errno;
        program_fd = load_program(broadcast);
        if (program_fd < 0)
                return program_fd;

        /* what the guest's own programs attach to cgroups below has its say as well */
        attr = (union bpf_attr) {
                .target_fd = (uint32_t) cgroup_fd,
                .attach_bpf_fd = (uint32_t) program_fd,
                .attach_type = BPF_CGROUP_INET_EGRESS,
                .attach_flags = BPF_F_ALLOW_MULTI,
        };
        return syscall(SYS_bpf, BPF_PROG_ATTACH, &attr, sizeof(attr)) < 0 ? -errno : 0;
}
