/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "audit-test.h"
#include "audit/audit-api.h"
#include "audit/audit-chain.h"
#include "audit/audit-closing.h"
#include "audit/audit-export.h"
#include "util/io.h"

enum { N = 9 };

static char folder[32];
static AuditKey *the_key;
static AuditRecord records[N + 1]; /* from 1 */

static int setup(void **state) {
        uint8_t prev[AUDIT_HASH_SIZE] = {};
        int fd;

        strcpy(folder, "/tmp/test-verify-XXXXXX");
        assert_non_null(mkdtemp(folder));
        fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(audit_key_load_or_make(&the_key, fd), 0);
        (void) close(fd);

        for (unsigned i = 1; i <= N; i++) {
                audit_test_fill(&records[i], i);
                assert_int_equal(audit_record_seal(&records[i], i, prev), 0);
                memcpy(prev, records[i].hash, sizeof(prev));
        }
        return 0;
}

static int teardown(void **state) {
        static const char *const names[] = { AUDIT_PRIVATE_KEY, AUDIT_PUBLIC_KEY, AUDIT_CHECKPOINTS, "export" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                char path[96];

                (void) snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
                (void) unlink(path);
        }
        for (unsigned i = 1; i <= N; i++)
                audit_record_done(&records[i]);
        the_key = audit_key_free(the_key);
        return rmdir(folder);
}

/* Each number is a record; the export as journalctl writes it. With NULL unit it names none. */
static void put(FILE *f, unsigned n, const char *unit) {
        _cleanup_free_ char *text = NULL;
        size_t size;

        assert_int_equal(audit_record_text(&records[n], &text, &size), 0);
        (void) fprintf(f, "__CURSOR=s=%u\n_TRANSPORT=journal\n", n);
        if (unit)
                (void) fprintf(f, "_SYSTEMD_UNIT=%s\n", unit);
        (void) fprintf(f, "%s\n", text);
}

/* Without its closing line. */
static char *export_open(const char *numbers) {
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        (void) fputs("MESSAGE=Journal started\n_SYSTEMD_UNIT=init.scope\n\n", f);
        for (; *numbers; numbers++)
                put(f, (unsigned) (*numbers - '0'), AUDIT_UNIT);
        (void) fclose(f);
        return text;
}

#define LATER "2099-01-01T00:00:00.000Z"

/* The closing line that an export of these records has; "" if there are none. */
static char *closing_of(const char *numbers, const char *time) {
        AuditClosing c = { .first_seq = 9 };
        char line[AUDIT_CLOSING_LINE_MAX], *text;

        for (; *numbers; numbers++, c.records++) {
                unsigned n = (unsigned) (*numbers - '0');

                if (n < c.first_seq)
                        c.first_seq = n;
                if (n > c.head.seq) {
                        c.head.seq = n;
                        memcpy(c.head.hash, records[n].hash, AUDIT_HASH_SIZE);
                }
        }
        if (c.records == 0)
                return strdup("");

        strcpy(c.time, time);
        assert_int_equal(audit_closing_sign(the_key, &c), 0);
        audit_closing_line(&c, line);
        assert_true(asprintf(&text, AUDIT_CLOSING_FIELD "=%s\n\n", line) > 0);
        return text;
}

static char *joined(const char *a, const char *b) {
        char *text;

        assert_true(asprintf(&text, "%s%s", a, b) >= 0);
        return text;
}

static char *export_of(const char *numbers) {
        _cleanup_free_ char *open = export_open(numbers), *closing = closing_of(numbers, LATER);

        return joined(open, closing);
}

static const char *the_head; /* as --head= gives it; NULL: not given */

static void verify_text(const char *text, AuditVerifyReport *ret) {
        char path[64], key[64], checkpoints[64];
        AuditVerifyOptions options = { .export_file = path, .public_key = key, .checkpoints = checkpoints, .head = the_head };
        int fd;

        (void) snprintf(path, sizeof(path), "%s/export", folder);
        (void) snprintf(key, sizeof(key), "%s/" AUDIT_PUBLIC_KEY, folder);
        (void) snprintf(checkpoints, sizeof(checkpoints), "%s/" AUDIT_CHECKPOINTS, folder);
        fd = open(checkpoints, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        (void) close(fd);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644), 0);
        assert_int_equal(audit_verify(&options, ret), 0);
}

static void check_text(const char *text, AuditFinding finding, uint64_t seq) {
        AuditVerifyReport report;

        verify_text(text, &report);
        if (report.finding != finding || report.seq != seq)
                fail_msg("expected %s at %u, got %s at %u: %s", audit_finding_name(finding), (unsigned) seq,
                         audit_finding_name(report.finding), (unsigned) report.seq, report.reason);
        audit_verify_report_done(&report);
}

static void check(const char *numbers, AuditFinding finding, uint64_t seq) {
        _cleanup_free_ char *text = export_of(numbers);

        check_text(text, finding, seq);
}

static void test_order(void **state) {
        AuditVerifyReport report;
        _cleanup_free_ char *good = export_of("12345678956789");

        verify_text(good, &report);
        assert_int_equal(report.finding, AUDIT_GOOD);
        assert_string_equal(report.reason, "");
        assert_int_equal(report.records, 9);
        assert_int_equal(report.resent, 5);
        assert_int_equal(report.first_seq, 1);
        assert_int_equal(report.last_seq, 9);
        assert_false(report.vacuumed);
        audit_verify_report_done(&report);

        check("1", AUDIT_GOOD, 0);
        check("", AUDIT_EMPTY, 0);
        check("1235674567", AUDIT_GOOD, 0);        /* 4 was lost, and all from it on was sent again */
        check("12456789", AUDIT_REMOVED, 3);
        check("1249", AUDIT_REMOVED, 3);
        check("12435", AUDIT_SWAPPED, 4);
        check("1235647", AUDIT_SWAPPED, 5);       /* of 4, 5, 6 only 4 stands where it must */
        check("45", AUDIT_GOOD, 0);              /* vacuumed, as far as one can tell without checkpoints */
}

static char *replaced(const char *numbers, const char *from, const char *to) {
        _cleanup_free_ char *text = export_of(numbers);
        char *p = strstr(text, from), *out;

        assert_non_null(p);
        assert_true(asprintf(&out, "%.*s%s%s", (int) (p - text), text, to, p + strlen(from)) > 0);
        return out;
}

static void test_altered(void **state) {
        static const struct { const char *from, *to; AuditFinding finding; unsigned seq; } cases[] = {
                { "{\"step\":\"s3\"}", "{\"step\":\"s4\"}", AUDIT_ALTERED, 3 },
                { "ANCHORHOLD_SEQ=3\nANCHORHOLD_TIME=2026", "ANCHORHOLD_SEQ=3\nANCHORHOLD_TIME=2025", AUDIT_ALTERED, 3 },
                { "ANCHORHOLD_DATA={\"step\":\"s3\"}\n", "", AUDIT_MALFORMED, 3 },
                { "ANCHORHOLD_DATA={\"step\":\"s3\"}\n", "ANCHORHOLD_DATA={\"step\":\"s3\"}\nANCHORHOLD_ITEM=i3k9x0a1b2c3d\n", AUDIT_ALTERED, 3 },
                { "ANCHORHOLD_DATA={\"step\":\"s3\"}\n", "ANCHORHOLD_DATA={\"step\":\"s3\"}\nMESSAGE=more\n", AUDIT_MALFORMED, 3 },
                { "_SYSTEMD_UNIT=anchor-auditd.service", "_SYSTEMD_UNIT=other.service", AUDIT_FORGED, 1 },
                { "_SYSTEMD_UNIT=anchor-auditd.service\n", "", AUDIT_FORGED, 1 },
                { "MESSAGE=Journal started\n_SYSTEMD_UNIT=init.scope\n", "\n", AUDIT_GOOD, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *text = replaced("12345", cases[i].from, cases[i].to);

                check_text(text, cases[i].finding, cases[i].seq);
        }
}

/* A record that hashes well and is nevertheless not the one that was there. */
static void test_replaced(void **state) {
        AuditRecord saved = records[4], other = {};
        _cleanup_free_ char *one = NULL, *both = NULL;

        audit_test_fill(&other, 99);
        assert_int_equal(audit_record_seal(&other, 4, records[3].hash), 0);
        records[4] = other;
        one = export_of("12345");
        check_text(one, AUDIT_ALTERED, 5);

        both = export_open("4");
        records[4] = saved;
        {
                _cleanup_free_ char *good = export_open("12345"), *text = NULL;

                assert_true(asprintf(&text, "%s%s", good, both) > 0);
                check_text(text, AUDIT_FORGED, 4);
        }
        audit_record_done(&other);
}

/* An entry without a unit is believed only as a copy. */
static void test_unattributed(void **state) {
        _cleanup_free_ char *closing = closing_of("1223", LATER);
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        put(f, 1, AUDIT_UNIT);
        put(f, 2, NULL);
        put(f, 2, AUDIT_UNIT);
        put(f, 3, AUDIT_UNIT);
        (void) fputs(closing, f);
        (void) fclose(f);
        check_text(text, AUDIT_GOOD, 0);
        free(text);
}

static void sign(unsigned seq, unsigned first) {
        AuditHead head = { .seq = seq };
        AuditCheckpoint c;
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        memcpy(head.hash, records[seq].hash, AUDIT_HASH_SIZE);
        assert_int_equal(audit_checkpoint_sign(the_key, &head, first, &c), 0);
        assert_int_equal(audit_checkpoint_verify(the_key, &c), 1);
        assert_int_equal(audit_checkpoint_store(fd, &c), 0);
        (void) close(fd);
}

static void test_checkpoints(void **state) {
        AuditVerifyReport report;

        sign(3, 1);
        sign(6, 1);
        {
                _cleanup_free_ char *text = export_of("12345678");

                verify_text(text, &report);
                assert_int_equal(report.finding, AUDIT_GOOD);
                assert_true(report.checkpoints_checked);
                assert_int_equal(report.checkpoints, 2);
                audit_verify_report_done(&report);
        }
        check("12345", AUDIT_CUT, 6);
        check("", AUDIT_EMPTY, 0);
        check("3456789", AUDIT_REMOVED, 1);  /* cut at its head */

        sign(8, 3);
        check("3456789", AUDIT_GOOD, 0);     /* vacuumed, as the newest checkpoint says */
        check("456789", AUDIT_REMOVED, 3);
        sign(8, 4);                          /* nothing new, and vacuumed once more */
        check("456789", AUDIT_GOOD, 0);
        check("56789", AUDIT_REMOVED, 4);
}

static void test_checkpoint_of_another_log(void **state) {
        uint8_t saved[AUDIT_HASH_SIZE];

        memcpy(saved, records[5].hash, sizeof(saved));
        records[5].hash[0] ^= 1;
        sign(5, 1);
        memcpy(records[5].hash, saved, sizeof(saved));
        check("123456789", AUDIT_ALTERED, 5);
}

static void test_checkpoint_forged(void **state) {
        char path[64], *line;
        size_t size;

        sign(5, 1);
        (void) snprintf(path, sizeof(path), "%s/" AUDIT_CHECKPOINTS, folder);
        assert_int_equal(io_read_file(AT_FDCWD, path, 4096, &line, &size), 0);
        line[size - 2] = line[size - 2] == '0' ? '1' : '0';
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, line, size, 0644), 0);
        free(line);
        check("123456789", AUDIT_CHECKPOINT, 5);
}

static int on_field(const char *name, size_t name_size, const void *value, size_t size, void *userdata) {
        ++*(unsigned *) userdata;
        return 0;
}

static void test_export_reader(void **state) {
        static const struct { const char *data; size_t size; int r; unsigned n; } cases[] = {
#define D(s) s, sizeof(s) - 1
                { D(""), 0, 0 },
                { D("\n\n"), 0, 0 },
                { D("A=b\n"), 1, 1 },
                { D("A=\nB==\n\n"), 1, 2 },
                { D("A\n\x03\0\0\0\0\0\0\0x\ny\n\n"), 1, 1 },
                { D("A=b"), -EBADMSG, 0 },
                { D("a=b\n"), -EBADMSG, 0 },
                { D("=b\n"), -EBADMSG, 0 },
                { D("A\n\x03\0\0\0\0\0\0"), -EBADMSG, 0 },
                { D("A\n\x03\0\0\0\0\0\0\0xyz"), -EBADMSG, 0 },
                { D("A\n\x02\0\0\0\0\0\0\0xyz\n"), -EBADMSG, 0 },
                { D("A\n\xff\xff\xff\xff\xff\xff\xff\xffxyz\n"), -EBADMSG, 0 },
#undef D
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                AuditExport e = { .data = (const uint8_t *) cases[i].data, .size = cases[i].size };
                unsigned n = 0;

                assert_int_equal(audit_export_next(&e, on_field, &n), cases[i].r);
                assert_int_equal(n, cases[i].n);
        }
}

static void test_not_an_export(void **state) {
        check_text("{\"MESSAGE\":\"json\"}\n", AUDIT_MALFORMED, 0);
}

/* Cut off at any byte, the export is bad at that record, if anything of it is there that says that it is one. Damaged, it is bad there as well; and what is bad before that is
 * told first. */
static void test_cut_within_a_record(void **state) {
        _cleanup_free_ char *good = export_open("12345"), *swapped = export_open("1325"), *upto2 = export_open("12"), *upto3 = export_open("123");
        size_t start = strlen(upto2), end = strlen(upto3);
        const char *seq = strstr(good + start, "ANCHORHOLD_SEQ=");
        AuditVerifyReport report;
        char byte[32];

        for (size_t cut = start + 1; cut < end - 1; cut++) {
                _cleanup_free_ char *text = strndup(good, cut);

                verify_text(text, &report);
                if (text[cut - 1] != '\n' || cut > (size_t) (seq - good)) {
                        if (report.finding != AUDIT_MALFORMED || report.seq != 3 || report.records != 2 || !strstr(report.reason, "Record 3: "))
                                fail_msg("cut at %zu of %zu: %s at %u: %s", cut - start, end - start, audit_finding_name(report.finding), (unsigned) report.seq,
                                         report.reason);
                } else
                        assert_int_equal(report.finding, AUDIT_UNCLOSED); /* lines that every entry has: there is no record 3 */
                audit_verify_report_done(&report);
        }

        good[seq - good] = 'a';
        verify_text(good, &report);
        assert_int_equal(report.seq, 3);
        (void) snprintf(byte, sizeof(byte), "at byte %zu.", (size_t) (seq - good));
        assert_non_null(strstr(report.reason, byte));
        audit_verify_report_done(&report);

        swapped[strlen(swapped) - 3] = '\0';
        verify_text(swapped, &report);
        assert_int_equal(report.finding, AUDIT_SWAPPED);
        assert_int_equal(report.seq, 3);
        audit_verify_report_done(&report);

        check_text("__CURSOR=s=1\nANCHORHOLD_SEQ=7\nANCH", AUDIT_MALFORMED, 7);
}

static void check_joined(const char *numbers, const char *closing, AuditFinding finding, uint64_t seq) {
        _cleanup_free_ char *open = export_open(numbers), *text = joined(open, closing);

        check_text(text, finding, seq);
}

/* An export says itself where it ends. */
static void test_closing(void **state) {
        _cleanup_free_ char *closing = closing_of("12345", LATER), *of_copies = closing_of("1234545", LATER), *late = closing_of("345", LATER), *forged = strdup(closing);
        AuditVerifyReport report;
        char *p = strrchr(forged, ' ') + 1;

        check_joined("12345", closing, AUDIT_GOOD, 0); /* the control */
        check_joined("1234", closing, AUDIT_CUT, 5);
        check_joined("12", closing, AUDIT_CUT, 3);
        check_joined("2345", closing, AUDIT_REMOVED, 1);
        check_joined("123456", closing, AUDIT_FORGED, 6);
        check_joined("12345", late, AUDIT_CUT, 0);
        check_joined("1234545", closing, AUDIT_CUT, 0);
        check_joined("1234545", of_copies, AUDIT_GOOD, 0);
        check_joined("12345", of_copies, AUDIT_CUT, 0);

        check_joined("12345", "", AUDIT_UNCLOSED, 0);
        check_joined("1234", "", AUDIT_UNCLOSED, 0);
        check_joined("12345", AUDIT_CLOSING_FIELD "=anchorhold-export-1 5\n\n", AUDIT_MALFORMED, 6);

        *p = *p == '0' ? '1' : '0';
        check_joined("12345", forged, AUDIT_CHECKPOINT, 0);
        {
                _cleanup_free_ char *text = export_of("1234");

                verify_text(text, &report);
                assert_true(report.closed && report.closing_checked);
                assert_string_equal(report.closed_time, LATER);
                assert_int_equal(strlen(report.last_hash), HEX_SHA256_SIZE - 1);
                audit_verify_report_done(&report);
        }
}

/* A log goes on after it was exported. What was signed before, the export has. */
static void test_closing_and_checkpoints(void **state) {
        _cleanup_free_ char *before = closing_of("12345", "2020-01-01T00:00:00.000Z"), *after = closing_of("12345", LATER);

        sign(7, 1);
        check_joined("12345", before, AUDIT_GOOD, 0);
        check_joined("12345", after, AUDIT_CUT, 6);
        check_joined("12345", "", AUDIT_CUT, 6);
}

/* Without a closing line, what somebody noted as the head says that the file goes that far. */
static void test_head(void **state) {
        char hash[HEX_SHA256_SIZE];
        AuditVerifyReport report;

        text_hex(records[4].hash, AUDIT_HASH_SIZE, hash);
        the_head = hash;
        check_joined("12345", "", AUDIT_GOOD, 0);
        check_joined("123", "", AUDIT_CUT, 4);
        hash[16] = '\0';
        check_joined("1234", "", AUDIT_GOOD, 0);
        check_joined("123", "", AUDIT_CUT, 4);
        {
                _cleanup_free_ char *text = export_open("12345");

                verify_text(text, &report);
                assert_int_equal(report.head_seq, 4);
                assert_false(report.closed);
                audit_verify_report_done(&report);
        }
        the_head = NULL;
}

/* auditd's own word on where the journal ends. */
static void check_kept(unsigned last, unsigned kept, uint8_t spoil, AuditFinding finding, uint64_t seq) {
        AuditHead head = { .seq = kept };
        AuditVerifyReport report;
        AuditChain *chain;

        assert_int_equal(audit_chain_new(&chain), 0);
        for (unsigned i = 1; i <= last; records[i++].ours = false) {
                records[i].ours = true; /* as one that was read */
                assert_int_equal(audit_chain_add(chain, &records[i], AUDIT_UNIT), 0);
        }
        memcpy(head.hash, records[kept].hash, AUDIT_HASH_SIZE);
        head.hash[0] ^= spoil;
        audit_chain_set_kept(chain, &head);
        assert_int_equal(audit_chain_judge(chain, NULL, &report), 0);
        assert_int_equal(report.finding, finding);
        assert_int_equal(report.seq, seq);
        audit_verify_report_done(&report);
        (void) audit_chain_free(chain);
}

static void test_kept(void **state) {
        check_kept(5, 5, 0, AUDIT_GOOD, 0);
        check_kept(6, 5, 0, AUDIT_GOOD, 0);
        check_kept(4, 5, 0, AUDIT_CUT, 5);
        check_kept(0, 5, 0, AUDIT_EMPTY, 0);
        check_kept(5, 5, 1, AUDIT_ALTERED, 5);
        check_kept(6, 5, 1, AUDIT_ALTERED, 5);
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = {
                T(test_order),       T(test_altered),     T(test_replaced),
                T(test_unattributed), T(test_checkpoints), T(test_checkpoint_of_another_log),
                T(test_checkpoint_forged), T(test_export_reader), T(test_not_an_export), T(test_cut_within_a_record),
                T(test_closing), T(test_closing_and_checkpoints), T(test_head), T(test_kept),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
