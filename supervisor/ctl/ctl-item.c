/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* list, logs, stop, release, result. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl-format.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl-waiting.h"
#include "ctl/ctl.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum { LIST_PAGE = 500 };

/* What a person still has to do with, or the host. */
static const char *const live_states[] = {
        "submitted", "queued", "leased", "running", "waiting", "verifying", "in_review", "approved", "authorized",
        "publishing", "published", "publish_failed", "failed", NULL,
};

static const char *const ended_states[] = { "duplicate", "rejected", "cancelled", "exhausted", "merged", "closed", NULL };

static CtlExit check_item(Ctl *ctl, const char *s) {
        if (text_is_id('i', s))
                return CTL_OK;
        return ctl_usage(ctl, "\"%s\" is no item: those are \"i\" and twelve letters and digits.", s);
}

/* ---- list ---- */

static bool is_listed(const char *const *list, const char *s, size_t n) {
        for (; *list; list++)
                if (strlen(*list) == n && memcmp(*list, s, n) == 0)
                        return true;
        return false;
}

static CtlExit wanted_states(Ctl *ctl, json_t **ret) {
        _cleanup_json_ json_t *states = NULL;

        if (ctl->o.all && ctl->o.states)
                return ctl_usage(ctl, "--all and --state= exclude each other.");
        if (ctl->o.all)
                return CTL_OK;

        states = json_array();
        for (const char *p = ctl->o.states; p;) {
                size_t n = strcspn(p, ",");

                if (!is_listed(live_states, p, n) && !is_listed(ended_states, p, n))
                        return ctl_usage(ctl, "There is no state \"%.*s\".", (int) n, p);
                (void) json_array_append_new(states, json_stringn(p, n));
                p = p[n] ? p + n + 1 : NULL;
        }
        for (size_t i = 0; !ctl->o.states && live_states[i]; i++)
                (void) json_array_append_new(states, json_string(live_states[i]));

        *ret = TAKE_PTR(states);
        return CTL_OK;
}

typedef struct Page {
        json_t *items;  /* borrowed; all pages' */
        bool truncated; /* there are more, whatever was asked for */
} Page;

static CtlExit list_on_item(Ctl *ctl, json_t *params, void *userdata) {
        json_t *item = json_object_get(params, "item");
        Page *p = userdata;

        p->truncated = json_is_true(json_object_get(params, "truncated"));
        if (json_is_object(item) && json_array_append(p->items, item) < 0)
                return ctl_report(ctl, "list", -ENOMEM, NULL, NULL);
        return CTL_OK;
}

static int list_row(Table *t, const json_t *item) {
        _cleanup_free_ char *id = ctl_text(item, "id", "?"), *state = ctl_text(item, "state", "?"),
                            *workflow = ctl_text(item, "workflow", "?"), *task = NULL;
        const json_t *command = json_object_get(item, "command");
        char ago[CTL_TEXT_SIZE], cost[CTL_TEXT_SIZE];
        int r = 0;

        if (json_is_string(json_object_get(item, "task"))) {
                task = ctl_text(item, "task", "");
        } else if (json_is_array(command)) {
                _cleanup_free_ char *joined = ctl_join(command);

                task = joined ? text_escape(joined, strlen(joined), false) : NULL;
        } else {
                task = strdup("");
        }
        if (!id || !state || !workflow || !task)
                return -ENOMEM;

        r = table_add(t, id) ?: table_add(t, state) ?: table_add(t, workflow) ?:
            table_add(t, format_ago(ctl_string(item, "created"), time_realtime(), ago)) ?:
            table_add(t, format_cost(json_integer_value(json_object_get(item, "cost_microusd")), cost)) ?:
            table_add(t, task);
        return r;
}

/* One line for each reason why what is queued does not start, other than that others are first. */
static void list_why_waiting(Ctl *ctl) {
        _cleanup_json_ json_t *reply = NULL, *reasons = NULL;
        const json_t *reason;
        size_t i;

        if (ctl_call(ctl, "ask for the status", "Status", json_object(), NULL, 0, &reply, NULL, 0) != CTL_OK)
                return;

        reasons = waiting_reasons(reply);
        json_array_foreach(reasons, i, reason) {
                _cleanup_free_ char *safe = text_escape(json_string_value(reason), json_string_length(reason), false);

                (void) fprintf(ctl->out, "No run starts: %s.\n", safe ?: "?");
        }
}

static bool any_is_queued(const json_t *items) {
        const json_t *item;
        size_t i;

        json_array_foreach(items, i, item)
                if (strcmp(ctl_string(item, "state") ?: "", "queued") == 0)
                        return true;
        return false;
}

static void list_legend(Ctl *ctl, const json_t *items) {
        size_t n = json_array_size(items);

        (void) fprintf(ctl->out, "%s%zu item%s listed.%s\n", n > 0 ? "\n" : "", n, n == 1 ? "" : "s",
                       ctl->o.all || ctl->o.states ? "" : " Ended items: --all.");
        if (any_is_queued(items))
                list_why_waiting(ctl);
}

/* All of them, or as many as are wanted: anchord is asked for one page after the other. */
static CtlExit list_items(Ctl *ctl, json_t *states, json_t *items) {
        for (;;) {
                size_t n = json_array_size(items), page = LIST_PAGE;
                const char *last = n > 0 ? ctl_string(json_array_get(items, n - 1), "id") : NULL;
                Page got = { .items = items };
                CtlExit r;

                if (ctl->o.limit > 0 && ctl->o.limit - n < page)
                        page = ctl->o.limit - n;
                r = ctl_call_more(ctl, "list", "List", json_pack("{s:O*, s:I, s:s*}", "states", states, "limit", (json_int_t) page, "after", last),
                                  list_on_item, &got);
                if (r != CTL_OK)
                        return r;
                if (json_array_size(items) == n || (json_array_size(items) < n + page && !got.truncated) ||
                    (ctl->o.limit > 0 && json_array_size(items) >= ctl->o.limit))
                        return CTL_OK;
        }
}

CtlExit ctl_verb_list(Ctl *ctl) {
        static const char *const titles[] = { "ITEM", "STATE", "WORKFLOW", "SUBMITTED", "COST", "TASK", NULL };
        _cleanup_json_ json_t *items = json_array(), *states = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        json_t *item;
        size_t i;
        CtlExit r;

        r = wanted_states(ctl, &states);
        if (r != CTL_OK)
                return r;
        r = list_items(ctl, states, items);
        if (r != CTL_OK)
                return r;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, items);

        if (table_new(&t, titles) < 0)
                return ctl_report(ctl, "list", -ENOMEM, NULL, NULL);
        table_align_right(t, 4);
        json_array_foreach(items, i, item)
                if (list_row(t, item) < 0)
                        return ctl_report(ctl, "list", -ENOMEM, NULL, NULL);

        ctl_pager_open(ctl);
        if (table_rows(t) > 0)
                table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        if (!ctl->o.no_legend)
                list_legend(ctl, items);
        return CTL_OK;
}

/* ---- logs ---- */

static CtlExit logs_on_event(Ctl *ctl, json_t *params, void *userdata) {
        const json_t *event = json_object_get(params, "event");

        if (event)
                ctl_print_event(userdata, event);
        return CTL_OK;
}

CtlExit ctl_verb_logs(Ctl *ctl) {
        const char *item = ctl->o.args[1];
        CtlPrinter printer = { .ctl = ctl, .only_run = ctl->o.run };
        FILE *err = ctl->err;
        json_t *params;
        CtlExit r;

        r = check_item(ctl, item);
        if (r != CTL_OK)
                return r;
        if (ctl->o.run && !text_is_id('r', ctl->o.run))
                return ctl_usage(ctl, "\"%s\" is no run: those are \"r\" and twelve letters and digits.", ctl->o.run);
        if (ctl->o.follow)
                return ctl_follow(ctl, item, ctl->o.run, 0);

        params = json_pack("{s:s, s:s*}", "item", item, "run", ctl->o.run);
        if (!params)
                return ctl_report(ctl, "show the logs", -ENOMEM, NULL, NULL);

        /* what the host says goes through the pager as well, in its place */
        ctl_pager_open(ctl);
        if (ctl->pager > 0)
                ctl->err = ctl->out;
        r = ctl_call_more(ctl, "show the logs", "Logs", params, logs_on_event, &printer);
        ctl_print_end(&printer);
        ctl->err = err;
        return r;
}

/* ---- stop, release ---- */

static CtlExit drop_event(Ctl *ctl, json_t *event, void *userdata) {
        return CTL_OK;
}

/* As systemctl does: "stopped" is said when it is so. */
static CtlExit await_rest(Ctl *ctl, const char *item) {
        _cleanup_free_ char *what = text_format("wait for %s to stop", item);

        return ctl_call_more(ctl, what ?: "wait", "Follow", json_pack("{s:s}", "item", item), drop_event, NULL);
}

static CtlExit stop_all_and_wait(Ctl *ctl, json_t **ret) {
        _cleanup_json_ json_t *reply = NULL;
        const json_t *item;
        CtlExit r;
        size_t i;

        r = ctl_call(ctl, "stop", "StopAll", json_pack("{s:b, s:s*}", "hold", ctl->o.hold, "reason", ctl->o.reason), NULL, 0,
                     &reply, NULL, 0);
        if (r != CTL_OK) {
                if (r == CTL_FAILED)
                        ctl_error(ctl, "Without anchord, \"systemctl stop anchorhold-runs.slice\" ends every run.");
                return r;
        }

        json_array_foreach(json_object_get(reply, "stopped"), i, item) {
                r = await_rest(ctl, json_string_value(item));
                if (r != CTL_OK)
                        return r;
        }

        *ret = TAKE_PTR(reply);
        return CTL_OK;
}

static CtlExit stop_all(Ctl *ctl) {
        bool begun = ctl_activity_begin(ctl, "Stopping every run");
        _cleanup_json_ json_t *reply = NULL;
        size_t n;
        CtlExit r;

        r = stop_all_and_wait(ctl, &reply);
        ctl_activity_end(ctl, begun);
        if (r != CTL_OK)
                return r;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, reply);

        n = json_array_size(json_object_get(reply, "stopped"));
        ctl_note(ctl, "%zu item%s stopped.%s", n, n == 1 ? "" : "s", ctl->o.hold ? " No run starts until \"anchorctl release\"." : "");
        return CTL_OK;
}

static CtlExit stop_one(Ctl *ctl, const char *item) {
        _cleanup_free_ char *what = text_format("stop %s", item), *doing = text_format("Stopping %s", item);
        bool begun = ctl_activity_begin(ctl, doing ?: "Stopping");
        CtlExit r;

        r = ctl_call(ctl, what ?: "stop", "Stop", json_pack("{s:s, s:s*}", "item", item, "reason", ctl->o.reason), NULL, 0, NULL, NULL, 0);
        if (r == CTL_OK)
                r = await_rest(ctl, item);
        ctl_activity_end(ctl, begun);
        return r;
}

CtlExit ctl_verb_stop(Ctl *ctl) {
        CtlExit worst = CTL_OK;

        if (ctl->o.all == (ctl->o.n_args > 1))
                return ctl_usage(ctl, ctl->o.all ? "\"stop\" takes items or --all, not both." : "\"stop\" needs items, or --all.");
        if (ctl->o.hold && !ctl->o.all)
                return ctl_usage(ctl, "--hold goes with --all.");
        if (ctl->o.all)
                return stop_all(ctl);

        for (int i = 1; i < ctl->o.n_args; i++)
                if (check_item(ctl, ctl->o.args[i]) != CTL_OK)
                        return CTL_USAGE;

        for (int i = 1; i < ctl->o.n_args; i++) {
                CtlExit r = stop_one(ctl, ctl->o.args[i]);

                if (r != CTL_OK)
                        worst = r;
        }
        return worst;
}

CtlExit ctl_verb_release(Ctl *ctl) {
        CtlExit r;

        r = ctl_call(ctl, "release", "Hold", json_pack("{s:b}", "on", 0), NULL, 0, NULL, NULL, 0);
        if (r == CTL_OK)
                waiting_ended(ctl, "The hold is released.", "Runs start again.");
        return r;
}

/* ---- result ---- */

static CtlExit fetch(Ctl *ctl, const char *item, const char *what, int *ret_fd) {
        int fd = -1;
        CtlExit r;

        r = ctl_call(ctl, "fetch the result", "Result", json_pack("{s:s, s:s}", "item", item, "what", what), NULL, 0, NULL, &fd, 1);
        if (r != CTL_OK)
                return r;
        if (fd < 0) {
                ctl_error(ctl, "Cannot fetch the result: anchord sent no file.");
                return CTL_FAILED;
        }

        *ret_fd = fd;
        return CTL_OK;
}

static CtlExit write_bundle(Ctl *ctl, const char *item, const char *path) {
        _cleanup_fd_ int from = -1, to = -1;
        bool to_stdout = strcmp(path, "-") == 0;
        char text[CTL_TEXT_SIZE];
        uint64_t size = 0;
        CtlExit e;
        int r;

        if (to_stdout && ctl->out_tty)
                return ctl_usage(ctl, "A bundle is no text for a terminal; name a file.");
        e = fetch(ctl, item, "bundle", &from);
        if (e != CTL_OK)
                return e;

        if (!to_stdout) {
                to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
                if (to < 0) {
                        r = -errno;
                        ctl_error(ctl, "Cannot write %s: %s", path, strerror(-r));
                        return ctl_exit_of_errno(r);
                }
        }
        r = io_copy(from, to_stdout ? STDOUT_FILENO : to, UINT64_MAX, &size);
        if (r < 0) {
                ctl_error(ctl, "Cannot write %s: %s", path, strerror(-r));
                return CTL_FAILED;
        }
        if (!to_stdout && close(TAKE_FD(to)) < 0) {
                ctl_error(ctl, "Cannot write %s: %s", path, strerror(errno));
                return CTL_FAILED;
        }
        if (!to_stdout)
                ctl_note(ctl, "%s in %s. \"git fetch %s refs/anchorhold/result\" takes it over.",
                         format_size(size, text), path, path);
        return CTL_OK;
}

static CtlExit print_diff(Ctl *ctl, const char *item) {
        _cleanup_free_ char *data = NULL, *safe = NULL;
        _cleanup_fd_ int fd = -1;
        size_t size;
        CtlExit e;
        int r;

        e = fetch(ctl, item, "diff", &fd);
        if (e != CTL_OK)
                return e;

        r = io_read_fd(fd, 256 << 20, &data, &size);
        if (r < 0) {
                ctl_error(ctl, "Cannot read the diff: %s", strerror(-r));
                return CTL_FAILED;
        }

        /* a file gets the bytes, so that it can be applied; a terminal gets what is safe to look at */
        if (!ctl->out_tty) {
                (void) fwrite(data, 1, size, ctl->out);
                return CTL_OK;
        }
        safe = text_escape(data, size, true);
        if (!safe)
                return ctl_report(ctl, "print the diff", -ENOMEM, NULL, NULL);
        ctl_pager_open(ctl);
        (void) fputs(safe, ctl->out);
        return CTL_OK;
}

CtlExit ctl_verb_result(Ctl *ctl) {
        const char *item = ctl->o.args[1];
        CtlExit r;

        r = check_item(ctl, item);
        if (r != CTL_OK)
                return r;
        if (ctl->o.bundle && ctl->o.diff)
                return ctl_usage(ctl, "--bundle= and --diff exclude each other.");

        if (ctl->o.bundle)
                return write_bundle(ctl, item, ctl->o.bundle);
        if (ctl->o.diff)
                return print_diff(ctl, item);
        return ctl_show_result(ctl, item);
}
