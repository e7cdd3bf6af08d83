/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * policy log: what a run connected to and what it was refused, from the audit journal itself, so that
 * nobody has to be asked who could have an interest in the answer.
 *
 * Only entries that auditd wrote count (journald notes the unit of the sender). A record may be in the journal
 * twice, sent again after a crash of auditd; the sequence number says so.
 */

#include <errno.h>
#include <string.h>
#include <systemd/sd-journal.h>

#include "audit/audit-api.h"
#include "ctl/ctl-policy-log.h"
#include "ctl/ctl-table.h"
#include "util/json.h"
#include "util/text.h"

enum {
        RECORDS_MAX = 200000,
        RUNS_MAX = 256, /* of one item */
        FIELD_MAX = 64 * 1024,
        FOLLOW_WAIT_USEC = 1000 * 1000,
};

typedef struct Records {
        CtlLogRecord *list;  /* owned */
        size_t n;
        bool any;            /* something about it is in the log, whether shown or not */
} Records;

static void record_done(CtlLogRecord *r) {
        free(r->time);
        free(r->event);
        free(r->run);
        free(r->actor);
        json_unref(r->data);
}

static void records_done(Records *r) {
        for (size_t i = 0; i < r->n; i++)
                record_done(&r->list[i]);
        free(r->list);
}

static void journal_closep(sd_journal **j) {
        if (*j)
                sd_journal_close(*j);
        *j = NULL;
}

/* The value of a field of the current entry, the caller's; NULL if there is none. */
static char *get_field(sd_journal *j, const char *name) {
        const void *data;
        size_t size, prefix = strlen(name) + 1;

        if (sd_journal_get_data(j, name, &data, &size) < 0 || size < prefix || size > FIELD_MAX)
                return NULL;
        return strndup((const char *) data + prefix, size - prefix);
}

static int open_journal(Ctl *ctl, sd_journal **ret) {
        int r;

        if (ctl->o.directory)
                r = sd_journal_open_directory(ret, ctl->o.directory, 0);
        else
                r = sd_journal_open_namespace(ret, AUDIT_NAMESPACE, SD_JOURNAL_LOCAL_ONLY);
        if (r < 0)
                return r;

        (void) sd_journal_set_data_threshold(*ret, FIELD_MAX);
        return sd_journal_add_match(*ret, "_SYSTEMD_UNIT=" AUDIT_UNIT, 0);
}

static int match(sd_journal *j, const char *field, const char *value) {
        _cleanup_free_ char *text = text_format("%s=%s", field, value);

        return text ? sd_journal_add_match(j, text, 0) : -ENOMEM;
}

/* The runs that the log names for an item. */
static int find_runs(Ctl *ctl, const char *item, char ret[static RUNS_MAX][ID_LENGTH + 1], size_t *ret_n) {
        _cleanup_(journal_closep) sd_journal *j = NULL;
        size_t n = 0;
        int r;

        r = open_journal(ctl, &j);
        if (r >= 0)
                r = match(j, "ANCHORHOLD_ITEM", item);
        if (r < 0)
                return r;

        SD_JOURNAL_FOREACH(j) {
                _cleanup_free_ char *run = get_field(j, "ANCHORHOLD_RUN");
                size_t i;

                for (i = 0; run && i < n; i++)
                        if (strcmp(ret[i], run) == 0)
                                break;
                if (run && i == n && n < RUNS_MAX && text_is_id('r', run))
                        memcpy(ret[n++], run, ID_LENGTH + 1);
        }

        *ret_n = n;
        return 0;
}

static int take_record(Records *records, sd_journal *j, bool blocked) {
        _cleanup_free_ char *event = NULL, *data = NULL, *seq = NULL;
        _cleanup_json_ json_t *parsed = NULL;
        CtlLogRecord *grown;

        records->any = true;
        event = get_field(j, "ANCHORHOLD_EVENT");
        if (!event || !ctl_record_is_network(event))
                return 0;

        data = get_field(j, "ANCHORHOLD_DATA");
        if (!data || json_parse(data, strlen(data), &parsed, NULL) < 0)
                parsed = json_object();
        if (blocked && !ctl_record_is_denial(event, parsed))
                return 0;
        if (records->n >= RECORDS_MAX)
                return -E2BIG;

        grown = reallocarray(records->list, records->n + 1, sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        records->list = grown;

        seq = get_field(j, "ANCHORHOLD_SEQ");
        records->list[records->n++] = (CtlLogRecord) {
                .seq = seq ? strtoull(seq, NULL, 10) : 0,
                .time = get_field(j, "ANCHORHOLD_TIME"),
                .event = TAKE_PTR(event),
                .run = get_field(j, "ANCHORHOLD_RUN"),
                .actor = get_field(j, "ANCHORHOLD_ACTOR"),
                .data = TAKE_PTR(parsed),
        };
        return 0;
}

static int compare_records(const void *a, const void *b) {
        const CtlLogRecord *x = a, *y = b;

        return (x->seq > y->seq) - (x->seq < y->seq);
}

static void sort_records(Records *records) {
        size_t n = 0;

        if (records->n == 0)
                return;

        qsort(records->list, records->n, sizeof(*records->list), compare_records);
        for (size_t i = 0; i < records->n; i++) {
                if (n > 0 && records->list[n - 1].seq == records->list[i].seq)
                        record_done(&records->list[i]);
                else
                        records->list[n++] = records->list[i];
        }
        records->n = n;
}

static int read_records(Ctl *ctl, const char *subject, Records *records) {
        char runs[RUNS_MAX][ID_LENGTH + 1] = {};
        _cleanup_(journal_closep) sd_journal *j = NULL;
        size_t n = 1;
        int r;

        if (subject[0] == 'r') {
                memcpy(runs[0], subject, ID_LENGTH + 1);
        } else {
                r = find_runs(ctl, subject, runs, &n);
                if (r < 0)
                        return r;
                if (n == 0)
                        return 0;
                records->any = true;
        }

        r = open_journal(ctl, &j);
        for (size_t i = 0; r >= 0 && i < n; i++)
                r = match(j, "ANCHORHOLD_RUN", runs[i]); /* matches on one field are alternatives */
        if (r < 0)
                return r;

        SD_JOURNAL_FOREACH(j) {
                r = take_record(records, j, ctl->o.blocked);
                if (r < 0)
                        return r;
        }

        sort_records(records);
        return 0;
}

static json_t *record_to_json(const CtlLogRecord *r) {
        return json_pack("{s:I, s:s?, s:s, s:s?, s:s?, s:O}", "seq", (json_int_t) r->seq, "time", r->time, "event", r->event, "run", r->run,
                         "actor", r->actor, "data", r->data);
}

static CtlExit print_json(Ctl *ctl, const Records *records) {
        _cleanup_json_ json_t *array = json_array();

        for (size_t i = 0; array && i < records->n; i++)
                if (json_array_append_new(array, record_to_json(&records->list[i])) < 0)
                        return ctl_report(ctl, "read the audit log", -ENOMEM, NULL, NULL);

        return ctl_print_json(ctl, array);
}

static const char *verdict(const CtlLogRecord *r) {
        if (ctl_record_is_denial(r->event, r->data))
                return "denied";
        if (strcmp(r->event, "conn.close") == 0)
                return "closed";
        if (strcmp(r->event, "egress.allow") == 0 || strcmp(r->event, "egress.requests") == 0 || strcmp(r->event, "dns.allow") == 0)
                return "allowed";
        return "-";
}

static CtlExit print_table(Ctl *ctl, const Records *records) {
        static const char *const titles[] = { "TIME", "RUN", "VERDICT", "RULE", "REQUEST", NULL };
        _cleanup_(table_freep) Table *t = NULL;
        size_t denied = 0;
        uint64_t refusals = 0;
        int r;

        r = table_new(&t, titles);
        for (size_t i = 0; r >= 0 && i < records->n; i++) {
                const CtlLogRecord *record = &records->list[i];
                _cleanup_free_ char *time = text_escape(record->time ?: "-", strlen(record->time ?: "-"), false),
                                    *rule = ctl_text(record->data, "rule", "-"),
                                    *text = ctl_record_text(record->event, record->actor, record->data);

                if (!time || !rule || !text) {
                        r = -ENOMEM;
                        break;
                }
                denied += ctl_record_is_denial(record->event, record->data);
                refusals += ctl_record_refusals(record->event, record->data);
                r = table_add(t, strlen(time) >= 19 ? time + 11 : time) ?: table_add(t, record->run) ?: table_add(t, verdict(record)) ?:
                    table_add(t, rule) ?: table_add(t, text);
        }
        if (r < 0)
                return ctl_report(ctl, "read the audit log", r, NULL, NULL);

        ctl_pager_open(ctl);
        if (table_rows(t) > 0)
                table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        if (ctl->o.no_legend)
                return CTL_OK;
        if (ctl->o.blocked && denied == 0)
                (void) fputs("Nothing was refused.\n", ctl->out);
        else if (ctl->o.blocked)
                (void) fprintf(ctl->out, "\nRefused %llu time%s, in %zu record%s.\n", (unsigned long long) refusals, refusals == 1 ? "" : "s", denied,
                               denied == 1 ? "" : "s");
        else
                (void) fprintf(ctl->out, "%s%zu record%s; refused %llu time%s, in %zu of them.\n", table_rows(t) > 0 ? "\n" : "", records->n,
                               records->n == 1 ? "" : "s", (unsigned long long) refusals, refusals == 1 ? "" : "s", denied);
        return CTL_OK;
}

static CtlExit report_read(Ctl *ctl, int r, const char *subject) {
        if (r == -E2BIG) {
                ctl_error(ctl, "There are more than %d records about %s; journalctl --namespace=" AUDIT_NAMESPACE
                               " ANCHORHOLD_RUN=RUN shows them.", RECORDS_MAX, subject);
                return CTL_FAILED;
        }
        ctl_error(ctl, "Cannot read the audit log: %s", strerror(-r));
        return ctl_exit_of_errno(r);
}

/* ---- following ---- */

/* One record as it comes: columns as wide as they usually have to be. */
static CtlExit print_line(Ctl *ctl, const CtlLogRecord *r) {
        _cleanup_free_ char *time = text_escape(r->time ?: "-", strlen(r->time ?: "-"), false), *rule = ctl_text(r->data, "rule", "-"),
                            *text = ctl_record_text(r->event, r->actor, r->data);

        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *j = record_to_json(r);

                return ctl_print_json(ctl, j);
        }
        if (!time || !rule || !text)
                return ctl_report(ctl, "read the audit log", -ENOMEM, NULL, NULL);

        (void) fprintf(ctl->out, "%s %s %-7s %s  %s\n", strlen(time) >= 19 ? time + 11 : time, r->run ?: "-", verdict(r), rule, text);
        ctl_flush(ctl, ctl->out);
        return ctl->lost != 0 ? CTL_FAILED : CTL_OK;
}

static CtlExit print_new(Ctl *ctl, Records *records, uint64_t *last_seq) {
        CtlExit e = CTL_OK;

        sort_records(records);
        for (size_t i = 0; e == CTL_OK && i < records->n; i++)
                if (records->list[i].seq > *last_seq) {
                        *last_seq = records->list[i].seq;
                        e = print_line(ctl, &records->list[i]);
                }

        for (size_t i = 0; i < records->n; i++)
                record_done(&records->list[i]);
        records->n = 0;
        return e;
}

/* Until interrupted, as journalctl does. */
static CtlExit follow(Ctl *ctl, const char *run) {
        _cleanup_(journal_closep) sd_journal *j = NULL;
        _cleanup_(records_done) Records records = {};
        uint64_t last_seq = 0;
        bool told = false;
        CtlExit e;
        int r;

        r = open_journal(ctl, &j);
        if (r >= 0)
                r = match(j, "ANCHORHOLD_RUN", run);
        if (r >= 0)
                r = sd_journal_seek_head(j);

        while (r >= 0) {
                while ((r = sd_journal_next(j)) > 0) {
                        r = take_record(&records, j, ctl->o.blocked);
                        if (r < 0)
                                return report_read(ctl, r, run);
                }
                if (r < 0)
                        break;

                e = print_new(ctl, &records, &last_seq);
                if (e != CTL_OK)
                        return e;
                if (!records.any && !told)
                        ctl_note(ctl, "There is nothing about %s yet, as far as you may read the audit log (members of systemd-journal may read all of it).", run);
                told = true;
                r = sd_journal_wait(j, FOLLOW_WAIT_USEC);
        }
        return report_read(ctl, r, run);
}

CtlExit ctl_verb_policy_log(Ctl *ctl) {
        _cleanup_(records_done) Records records = {};
        const char *subject = ctl->o.args[1];
        int r;

        if (!text_is_id('r', subject) && !text_is_id('i', subject))
                return ctl_usage(ctl, "\"%s\" is no run and no item: those are \"r\" or \"i\" and twelve letters and digits.", subject);
        if (ctl->o.follow && ctl->o.suggest)
                return ctl_usage(ctl, "--suggest looks back, --follow ahead.");
        if (ctl->o.follow && subject[0] != 'r')
                return ctl_usage(ctl, "--follow needs a run; \"anchorctl show %s\" names the item's.", subject);
        if (ctl->o.follow)
                return follow(ctl, subject);

        ctl->o.blocked |= ctl->o.suggest;
        r = read_records(ctl, subject, &records);
        if (r < 0)
                return report_read(ctl, r, subject);
        if (!records.any) {
                ctl_error(ctl, "The audit log has nothing about %s, as far as you may read it "
                               "(members of systemd-journal may read all of it).", subject);
                return CTL_NOT_FOUND;
        }

        if (ctl->o.suggest)
                return ctl_policy_suggest(ctl, subject, records.list, records.n);
        return ctl->o.json != CTL_JSON_OFF ? print_json(ctl, &records) : print_table(ctl, &records);
}
