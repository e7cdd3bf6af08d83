/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Connections that somebody may make, or has made. What is written down of them is enough to close each of them after a crash. */

#include <errno.h>
#include <string.h>

#include "egress/egress-state-private.h"
#include "util/log.h"

static void grant_forget_requests(EgressGrant *g) {
        while (g->streams)
                egress_grant_remove_stream(g, g->streams);
}

static EgressGrant *grant_free(EgressGrant *g) {
        if (!g)
                return NULL;

        free(g->unit);
        free(g->name);
        free(g->rule);
        grant_forget_requests(g);
        free(g);
        return NULL;
}
DEFINE_CLEANUP(EgressGrant *, grant_free)

static int grant_new(EgressGrant **ret, EgressRun *run, const char *unit, uint64_t cgroup, const char *name, uint16_t port, const char *rule) {
        _cleanup_(grant_freep) EgressGrant *g = NULL;

        g = calloc(1, sizeof(*g));
        if (!g)
                return -ENOMEM;

        g->run = run;
        g->cgroup = cgroup;
        g->port = port;
        g->unit = strdup(unit);
        g->name = strdup(name);
        g->rule = strdup(rule);
        if (!g->unit || !g->name || !g->rule)
                return -ENOMEM;

        *ret = TAKE_PTR(g);
        return 0;
}

static void run_link_grant(EgressRun *run, EgressGrant *g) {
        g->next = run->grants;
        run->grants = g;
        run->n_addresses += g->n_addresses;
}

/* "203.0.113.1 2001:db8::1"; the caller's. */
static char *addresses_to_text(const Address *addresses, size_t n) {
        char text[GRANT_ADDRESSES_MAX * (ADDRESS_TEXT_SIZE + 1)] = "", *p = text;

        for (size_t i = 0; i < n; i++) {
                char one[ADDRESS_TEXT_SIZE];

                p = stpcpy(stpcpy(p, i > 0 ? " " : ""), address_format(&addresses[i], one));
        }
        return strdup(text);
}

static void addresses_from_text(const char *text, EgressGrant *g) {
        while (*text && g->n_addresses < GRANT_ADDRESSES_MAX) {
                size_t n = strcspn(text, " ");
                char one[ADDRESS_TEXT_SIZE];

                if (n < sizeof(one)) {
                        memcpy(one, text, n);
                        one[n] = '\0';
                        g->n_addresses += address_parse(one, &g->addresses[g->n_addresses]) >= 0;
                }
                text += n + (text[n] == ' ');
        }
}

int egress_state_load_latest_grant(EgressState *s) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT seq FROM sqlite_sequence WHERE name = 'grant_'", NULL);
        if (r < 0)
                return r;
        r = db_step(q);
        if (r > 0)
                s->latest_grant = (uint64_t) db_column_int(q, 0);
        return r < 0 ? r : 0;
}

uint64_t egress_state_latest_grant(const EgressState *s) {
        return s->latest_grant;
}

int egress_run_load_grants(EgressState *s, EgressRun *run) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT id, unit, cgroup, name, port, rule, addresses FROM grant_ WHERE run = ?", DB_ARGS(DB_TEXT(run->id)));
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                EgressGrant *g;

                r = grant_new(&g, run, db_column_text(q, 1), (uint64_t) db_column_int(q, 2), db_column_text(q, 3),
                              (uint16_t) db_column_int(q, 4), db_column_text(q, 5));
                if (r < 0)
                        return r;
                g->id = (uint64_t) db_column_int(q, 0);
                g->unlisted = true; /* what its owner asked, or was told not to ask, is not written down */
                addresses_from_text(db_column_text(q, 6), g);
                run_link_grant(run, g);
        }
        return r;
}

void egress_run_grants_done(EgressRun *run) {
        while (run->grants) {
                EgressGrant *g = run->grants;

                run->grants = g->next;
                (void) grant_free(g);
        }
        run->n_addresses = 0;
}

int egress_run_add_grant(EgressState *s, EgressRun *run, const char *unit, uint64_t cgroup, const char *name, uint16_t port,
                         const char *rule, const Address *addresses, size_t n_addresses, EgressGrant **ret) {
        _cleanup_(grant_freep) EgressGrant *g = NULL;
        _cleanup_free_ char *text = NULL;
        int r;

        if (n_addresses > GRANT_ADDRESSES_MAX || run->n_addresses + n_addresses > RUN_ADDRESSES_MAX)
                return -ENOSPC;

        r = grant_new(&g, run, unit, cgroup, name, port, rule);
        if (r < 0)
                return r;
        memcpy(g->addresses, addresses, n_addresses * sizeof(*addresses));
        g->n_addresses = n_addresses;
        text = addresses_to_text(addresses, n_addresses);
        if (!text)
                return -ENOMEM;

        r = db_run(s->db, "INSERT INTO grant_(run, unit, cgroup, name, port, rule, addresses) VALUES(?, ?, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(run->id), DB_TEXT(unit), DB_INT(cgroup), DB_TEXT(name), DB_INT(port), DB_TEXT(rule),
                           DB_TEXT(text)));
        if (r < 0)
                return r;

        g->id = s->latest_grant = (uint64_t) db_last_id(s->db);
        *ret = g;
        run_link_grant(run, TAKE_PTR(g));
        return 0;
}

EgressGrant *egress_run_find_grant(EgressRun *run, uint64_t id, uint64_t cgroup) {
        for (EgressGrant *g = run->grants; g; g = g->next)
                if (g->id == id && g->cgroup == cgroup)
                        return g;
        return NULL;
}

void egress_run_remove_grant(EgressState *s, EgressGrant *grant) {
        EgressGrant **at = &grant->run->grants;
        int r;

        r = db_run(s->db, "DELETE FROM grant_ WHERE id = ?", DB_ARGS(DB_INT(grant->id)));
        if (r < 0)
                log_warning_errno(r, "grant %lu: cannot be deleted from the database", (unsigned long) grant->id);

        while (*at != grant)
                at = &(*at)->next;
        *at = grant->next;
        grant->run->n_addresses -= grant->n_addresses;
        (void) grant_free(grant);
}

static int grant_push(EgressGrant *g, uint64_t number, const char *method, const char *path) {
        EgressStream *t = malloc(sizeof(*t));

        if (!t)
                return -ENOMEM;
        *t = (EgressStream) { .next = g->streams, .number = number, .method = strdup(method), .path = strdup(path) };
        g->streams = t;
        if (t->method && t->path)
                return 0;
        egress_grant_remove_stream(g, t);
        return -ENOMEM;
}

int egress_grant_set_request(EgressGrant *g, const char *method, const char *path) {
        grant_forget_requests(g);
        return method && path ? grant_push(g, 0, method, path) : 0;
}

int egress_grant_add_request(EgressGrant *g, const char *method, const char *path) {
        size_t n = 0, size;

        if (!method || !path || g->unlisted)
                return 0;

        size = strlen(method) + strlen(path);
        for (const EgressStream *t = g->streams; t; t = t->next, n++) {
                if (strcmp(t->method, method) == 0 && strcmp(t->path, path) == 0)
                        return 0;
                size += strlen(t->method) + strlen(t->path);
        }
        if (n >= EGRESS_LISTED_MAX || size > EGRESS_LISTED_SIZE_MAX) {
                g->unlisted = true;
                grant_forget_requests(g);
                return 0;
        }
        return grant_push(g, 0, method, path);
}

void egress_grant_remove_stream(EgressGrant *g, EgressStream *stream) {
        EgressStream **at = &g->streams;

        while (*at != stream)
                at = &(*at)->next;
        *at = stream->next;
        free(stream->method);
        free(stream->path);
        free(stream);
}

/* Questions may overtake each other: what has a greater number, this one did not know of. */
static void forget_streams(EgressGrant *g, uint64_t number, const uint64_t *open, size_t n_open) {
        for (EgressStream *t = g->streams, *next; t; t = next) {
                bool is_open = t->number > number;

                next = t->next;
                for (size_t i = 0; i < n_open; i++)
                        is_open = is_open || open[i] == t->number;
                if (!is_open || t->number == number)
                        egress_grant_remove_stream(g, t);
        }
}

int egress_grant_add_stream(EgressGrant *g, uint64_t number, const char *method, const char *path, const uint64_t *open, size_t n_open) {
        size_t n = 0;

        if (!g->carries_streams)
                grant_forget_requests(g);
        g->carries_streams = true;
        forget_streams(g, number, open, n_open);
        for (const EgressStream *t = g->streams; t; t = t->next)
                n++;
        return n >= EGRESS_STREAMS_MAX ? -ENOSPC : grant_push(g, number, method, path);
}
