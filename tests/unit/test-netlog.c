/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "audit/audit-share.h"
#include "net/netlog.h"

static uint16_t group = RUN_NET_LOG_GROUP;

static uint16_t ether; /* 0: without that attribute */

static size_t message(char *buffer, uint16_t type, const uint32_t *seq, const void *payload, size_t size) {
        struct nlmsghdr *nlh = mnl_nlmsg_put_header(buffer);

        nlh->nlmsg_type = (uint16_t) ((NFNL_SUBSYS_ULOG << 8) | type);
        *(struct nfgenmsg *) mnl_nlmsg_put_extra_header(nlh, sizeof(struct nfgenmsg)) = (struct nfgenmsg) { .res_id = htons(group) };
        if (seq)
                mnl_attr_put_u32(nlh, NFULA_SEQ, htonl(*seq));
        if (ether)
                mnl_attr_put(nlh, NFULA_PACKET_HDR, sizeof(struct nfulnl_msg_packet_hdr), &(struct nfulnl_msg_packet_hdr) { .hw_protocol = htons(ether) });
        if (payload)
                mnl_attr_put(nlh, NFULA_PAYLOAD, size, payload);
        return nlh->nlmsg_len;
}

/* IPv4, so many words of header, to 192.0.2.7:443 */
static const uint8_t tcp_packet[] = { 0x45, 0, 0, 40, 0, 0, 0, 0, 64, IPPROTO_TCP, 0, 0, 10, 255, 255, 2, 192, 0, 2, 7, 0x9c, 0x40, 0x01, 0xbb, 0, 0 };

static void test_parse(void **state) {
        char buffer[512];
        uint32_t seq = 77;
        NetlogPacket p;
        size_t size;

        size = message(buffer, NFULNL_MSG_PACKET, &seq, tcp_packet, sizeof(tcp_packet));
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.seq, 77);
        assert_int_equal(p.denial.protocol, IPPROTO_TCP);
        assert_int_equal(p.denial.port, 443);
        assert_memory_equal(p.denial.address, ((uint8_t[]) { 192, 0, 2, 7 }), 4);
        assert_int_equal(p.denial.packets, 1);
        assert_int_equal(p.group, RUN_NET_LOG_GROUP);
        assert_memory_equal(p.denial.source, ((uint8_t[4]) {}), 4);

        /* where the source is what is wrong, it is told */
        group = RUN_NET_SOURCE_LOG_GROUP;
        size = message(buffer, NFULNL_MSG_PACKET, &seq, tcp_packet, sizeof(tcp_packet));
        group = RUN_NET_LOG_GROUP;
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.group, RUN_NET_SOURCE_LOG_GROUP);
        assert_memory_equal(p.denial.source, ((uint8_t[]) { 10, 255, 255, 2 }), 4);

        /* a later fragment has no ports, whatever its bytes are */
        uint8_t fragment[sizeof(tcp_packet)];
        memcpy(fragment, tcp_packet, sizeof(fragment));
        fragment[7] = 3;
        size = message(buffer, NFULNL_MSG_PACKET, &seq, fragment, sizeof(fragment));
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.port, 0);

        /* cut off before the ports, and within the header */
        size = message(buffer, NFULNL_MSG_PACKET, &seq, tcp_packet, 22);
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.port, 0);
        assert_int_equal(p.denial.protocol, IPPROTO_TCP);
        size = message(buffer, NFULNL_MSG_PACKET, &seq, tcp_packet, 12);
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.protocol, 0);

        /* options: the ports are behind them */
        uint8_t options[30] = { 0x46, 0, 0, 30, 0, 0, 0, 0, 64, IPPROTO_UDP, 0, 0, 10, 255, 255, 2, 192, 0, 2, 9, 1, 1, 1, 0, 0, 9, 0, 53 };
        size = message(buffer, NFULNL_MSG_PACKET, &seq, options, sizeof(options));
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.port, 53);
}

/* Frames that are not IPv4: which they are, and of IPv6 where to. */
static void test_parse_frames(void **state) {
        uint8_t ipv6[48] = { 0x60, 0, 0, 0, 0, 8, IPPROTO_UDP, 64, [24] = 0x20, 0x01, 0x0d, 0xb8, [39] = 1, 0x9c, 0x40, 0x01, 0xbb };
        char buffer[512];
        uint32_t seq = 7;
        NetlogPacket p;
        size_t size;

        group = RUN_NET_FRAME_LOG_GROUP;
        ether = 0x86dd;
        size = message(buffer, NFULNL_MSG_PACKET, &seq, ipv6, sizeof(ipv6));
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.group, RUN_NET_FRAME_LOG_GROUP);
        assert_int_equal(p.denial.ether, 0x86dd);
        assert_int_equal(p.denial.protocol, IPPROTO_UDP);
        assert_int_equal(p.denial.port, 443);
        assert_memory_equal(p.denial.address6, ipv6 + 24, 16);

        /* cut off before the ports, within the header, and all of it */
        size = message(buffer, NFULNL_MSG_PACKET, &seq, ipv6, 43);
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.port, 0);
        size = message(buffer, NFULNL_MSG_PACKET, &seq, ipv6, 39);
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.protocol, 0);
        size = message(buffer, NFULNL_MSG_PACKET, &seq, NULL, 0);
        assert_int_equal(netlog_parse(buffer, size, &p), 1);

        ether = 0x88cc;
        size = message(buffer, NFULNL_MSG_PACKET, &seq, ipv6, sizeof(ipv6));
        assert_int_equal(netlog_parse(buffer, size, &p), 1);
        assert_int_equal(p.denial.ether, 0x88cc);
        assert_int_equal(p.denial.protocol, 0);
        ether = 0;
        group = RUN_NET_LOG_GROUP;
}

static void test_parse_refuses(void **state) {
        char buffer[512];
        uint32_t seq = 1;
        NetlogPacket p;
        size_t size;

        size = message(buffer, NFULNL_MSG_CONFIG, &seq, NULL, 0);
        assert_int_equal(netlog_parse(buffer, size, &p), 0);
        size = message(buffer, NFULNL_MSG_PACKET, NULL, tcp_packet, sizeof(tcp_packet));
        assert_int_equal(netlog_parse(buffer, size, &p), -EBADMSG);
        size = message(buffer, NFULNL_MSG_PACKET, &seq, tcp_packet, sizeof(tcp_packet));
        for (size_t i = 0; i < size; i++)
                assert_int_equal(netlog_parse(buffer, i, &p), -EBADMSG);
        ((struct nlmsghdr *) buffer)->nlmsg_len = 3;
        assert_int_equal(netlog_parse(buffer, size, &p), -EBADMSG);
}

static NetlogPacket packet(uint32_t seq, uint8_t last, uint16_t port) {
        return (NetlogPacket) { .seq = seq, .denial = { .protocol = IPPROTO_UDP, .address = { 192, 0, 2, last }, .port = port, .packets = 1 } };
}

static void test_tally(void **state) {
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        NetlogPacket p;

        assert_int_equal(netlog_tally_new(&t), 0);

        /* the first of a destination at once, the rest at the end of the window */
        p = packet(0, 1, 53);
        assert_true(netlog_tally_add(t, &p, &due));
        assert_int_equal(due.denial.packets, 1);
        for (uint32_t i = 1; i <= 5; i++) {
                p = packet(i, 1, 53);
                assert_false(netlog_tally_add(t, &p, &due));
        }
        p = packet(6, 1, 54);
        assert_true(netlog_tally_add(t, &p, &due));
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_int_equal(records[0].denial.packets, 5);
        assert_int_equal(records[0].denial.port, 53);
        assert_int_equal(netlog_tally_flush(t, false, records), 0);

        /* another source is another */
        p = packet(7, 1, 53);
        assert_true(netlog_tally_add(t, &p, &due));
        p = packet(8, 1, 53);
        p.denial.source[0] = 7;
        assert_true(netlog_tally_add(t, &p, &due));
        p.seq = 9;
        assert_false(netlog_tally_add(t, &p, &due));
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_int_equal(records[0].denial.source[0], 7);

        /* a new window: at once again; three were lost before it */
        p = packet(13, 1, 53);
        assert_true(netlog_tally_add(t, &p, &due));
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_true(records[0].lost);
        assert_int_equal(records[0].denial.packets, 3);
}

static void test_tally_bounds(void **state) {
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        uint64_t counted = 0, at_once = 0;
        NetlogPacket p;
        size_t n;

        assert_int_equal(netlog_tally_new(&t), 0);
        for (uint32_t i = 0; i < 1000; i++) {
                p = packet(i, (uint8_t) (i % 200), 53);
                at_once += netlog_tally_add(t, &p, &due);
        }
        assert_int_equal(at_once, NETLOG_KEYS_MAX);
        n = netlog_tally_flush(t, false, records);
        assert_int_equal(n, NETLOG_KEYS_MAX + 1);
        assert_true(records[n - 1].others);
        for (size_t i = 0; i < n; i++)
                counted += records[i].denial.packets;
        assert_int_equal(counted + at_once, 1000);
}

/* What could not be recorded is due once more, with what came meanwhile; nothing is lost for want of room. */
static void test_give_back(void **state) {
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        uint64_t counted = 0;
        NetlogPacket p;
        size_t n;

        assert_int_equal(netlog_tally_new(&t), 0);
        p = packet(3, 1, 53); /* three were lost */
        assert_true(netlog_tally_add(t, &p, &due));
        netlog_tally_give_back(t, &due);
        p = packet(4, 1, 53);
        assert_false(netlog_tally_add(t, &p, &due));

        n = netlog_tally_flush(t, false, records);
        assert_int_equal(n, 2);
        assert_int_equal(records[0].denial.packets, 2);
        assert_true(records[1].lost);

        /* of a window that is over, into one whose places are taken */
        for (uint32_t i = 0; i < NETLOG_KEYS_MAX; i++) {
                p = packet(5 + i, (uint8_t) (100 + i), 53);
                assert_true(netlog_tally_add(t, &p, &due));
        }
        netlog_tally_give_back(t, &records[0]);
        netlog_tally_give_back(t, &records[1]);
        n = netlog_tally_flush(t, false, records);
        assert_int_equal(n, 2);
        assert_true(records[0].others && records[1].lost);
        for (size_t i = 0; i < n; i++)
                counted += records[i].denial.packets;
        assert_int_equal(counted, 5);

        /* into an empty one: it is told apart */
        netlog_tally_give_back(t, &(NetlogRecord) { .denial = p.denial });
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_false(records[0].others || records[0].lost);
        assert_int_equal(records[0].denial.packets, 1);

        /* what will never be taken as it is: its number, without its words */
        netlog_tally_refused(t, 7);
        netlog_tally_refused(t, 2);
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_true(records[0].others);
        assert_int_equal(records[0].denial.packets, 9);
        assert_memory_equal(records[0].denial.address, ((uint8_t[4]) {}), 4);
}

/* What a guest can have written has an end, well within the unit's share of the log, and its packets are counted on. */
static void test_budget(void **state) {
        enum { WINDOWS = 1000, A_WINDOW = 50, RECORD_SIZE = 512 };
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        uint64_t counted = 0, n_records = 0, n_spent = 0;
        uint32_t seq = 0;
        NetlogPacket p;
        size_t n;

        assert_int_equal(netlog_tally_new(&t), 0);
        for (unsigned window = 0; window < WINDOWS; window++) {
                for (unsigned i = 0; i < 2 * A_WINDOW; i++) {
                        p = packet(seq++, (uint8_t) (i % A_WINDOW), 53);
                        if (netlog_tally_add(t, &p, &due)) {
                                assert_true(n_records < NETLOG_RECORDS_MAX);
                                n_records++;
                                counted++;
                        }
                }
                n = netlog_tally_flush(t, window == WINDOWS - 1, records);
                n_records += n;
                for (size_t i = 0; i < n; i++) {
                        counted += records[i].denial.packets;
                        n_spent += records[i].spent;
                        assert_true(!records[i].spent || (n == 1 && records[i].others));
                }
        }
        assert_int_equal(counted, (uint64_t) WINDOWS * 2 * A_WINDOW);
        assert_true(n_spent >= WINDOWS / NETLOG_SPENT_WINDOWS - 2 && n_spent <= WINDOWS / NETLOG_SPENT_WINDOWS + 1);
        assert_true(n_records <= NETLOG_RECORDS_MAX + NETLOG_KEYS_MAX + 2 + n_spent);
        assert_true(NETLOG_N_GROUPS * (NETLOG_RECORDS_MAX + NETLOG_KEYS_MAX + 2ULL) * (AUDIT_SHARE_RECORD + RECORD_SIZE) <= audit_share_total(PEER_NETLOG) / 3 * 2);
}

/* What auditd did not take uses nothing up. */
static void test_budget_given_back(void **state) {
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        NetlogPacket p;

        assert_int_equal(netlog_tally_new(&t), 0);
        p = packet(0, 1, 53);
        assert_true(netlog_tally_add(t, &p, &due));
        netlog_tally_give_back(t, &due);
        for (unsigned i = 0; i < 2 * NETLOG_RECORDS_MAX; i++) {
                assert_int_equal(netlog_tally_flush(t, false, records), 1);
                assert_false(records[0].spent);
                netlog_tally_give_back(t, &records[0]);
        }
        p = packet(1, 2, 53);
        assert_true(netlog_tally_add(t, &p, &due));
}

static void test_recorded(void **state) {
        _cleanup_(netlog_recorded_freep) NetlogRecorded *m = NULL;

        assert_int_equal(netlog_recorded_open(&m), 0);
        assert_int_equal(netlog_recorded_lacks(m, 0, 0), 0);
        netlog_recorded_add(m, 0, 5);
        netlog_recorded_add(m, 1, 2);
        assert_int_equal(netlog_recorded_lacks(m, 0, 7), 2);
        assert_int_equal(netlog_recorded_lacks(m, 1, 7), 5);
        assert_int_equal(netlog_recorded_lacks(m, 0, 4), 0); /* one was counted twice */
}

static void test_numbers_wrap(void **state) {
        NetlogRecord due, records[NETLOG_KEYS_MAX + 2];
        _cleanup_(netlog_tally_freep) NetlogTally *t = NULL;
        NetlogPacket p;

        assert_int_equal(netlog_tally_new(&t), 0);
        /* what is lost before the first that arrives is lost as well, but for a step that can only be a step back */
        p = packet(2, 1, 53);
        (void) netlog_tally_add(t, &p, &due);
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_int_equal(records[0].denial.packets, 2);

        p = packet(UINT32_MAX, 1, 53);
        (void) netlog_tally_add(t, &p, &due);
        assert_int_equal(netlog_tally_flush(t, false, records), 0);
        p = packet(1, 1, 53);
        (void) netlog_tally_add(t, &p, &due);
        assert_int_equal(netlog_tally_flush(t, false, records), 1);
        assert_int_equal(records[0].denial.packets, 1); /* number 0 */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse),
                cmocka_unit_test(test_parse_frames),
                cmocka_unit_test(test_parse_refuses),
                cmocka_unit_test(test_tally),
                cmocka_unit_test(test_tally_bounds),
                cmocka_unit_test(test_give_back),
                cmocka_unit_test(test_budget),
                cmocka_unit_test(test_budget_given_back),
                cmocka_unit_test(test_recorded),
                cmocka_unit_test(test_numbers_wrap),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
