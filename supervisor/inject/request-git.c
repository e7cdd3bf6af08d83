/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Git over HTTP. What is asked for is known before anything leaves:
 *
 *   fetch   its body, all of it, decoded if it is encoded: a list of names
 *   push    which refs are to become what, and as much of the pack as it takes to see what descends from what (git-push.h); the rest of the
 *           pack goes by as it comes, and is counted
 *   LFS     its body, a list of objects
 *
 * Whether a rule about git is the one that allows the request, egressd says when that is there; if it is, the request must be readable, and within the rule.
 * What no such rule is about is plain HTTP, and goes on as that.
 *
 * A refusal is an answer of git's own protocol, so that git says why: ERR in place of refs or a pack, a report in place of what became of refs.
 */

#include "inject/request-git.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        FETCH_MAX = 8 * 1024 * 1024,     /* of a fetch, as it comes, */
        DECODED_MAX = 64 * 1024 * 1024,  /* and decoded */
        BATCH_MAX = 1024 * 1024,         /* of LFS */
        PIECE = 16 * 1024,
        LISTED_MAX = 32,                 /* refs in a record */
};

RequestGit *request_git_free(RequestGit *g) {
        if (!g)
                return NULL;
        free(g->repository);
        git_push_free(g->push);
        git_fetch_done(&g->fetch);
        gunzip_free(g->gunzip);
        json_decref(g->batch);
        json_decref(g->rule);
        free(g->label);
        free(g);
        return NULL;
}
DEFINE_CLEANUP(RequestGit *, request_git_free)

/* ---- reading ---- */

/* A body that is encoded is decoded to be read, and leaves as it came. */
static int begin_decoding(RequestGit *g, const HttpHead *h) {
        const char *encoding;
        size_t n = http_head_find(h, "content-encoding", &encoding);

        if (n == 0 || (n == 1 && strcasecmp(encoding, "identity") == 0))
                return 0;
        if (n == 1 && g->service == GIT_FETCH && (strcasecmp(encoding, "gzip") == 0 || strcasecmp(encoding, "x-gzip") == 0))
                return gunzip_new(&g->gunzip);
        g->error = "its body is encoded";
        return 0;
}

int request_git_begin(Request *q) {
        _cleanup_(request_git_freep) RequestGit *g = NULL;
        const char *repository;
        GitService service;
        size_t n;
        int r;

        service = git_service_of(q->head->method, q->head->target, &repository, &n);
        if (service == GIT_NONE || service == GIT_DUMB)
                return 0;
        g = calloc(1, sizeof(*g));
        if (!g)
                return -ENOMEM;
        g->service = service;
        g->repository = text_escape(repository, n < 256 ? n : 256, false);
        r = g->repository ? begin_decoding(g, q->head) : -ENOMEM;
        if (r == 0 && service == GIT_PUSH)
                r = git_push_new(&g->push);
        if (r < 0)
                return r;
        q->git = TAKE_PTR(g);
        return 0;
}

bool request_git_holds(const Request *q) {
        return q->git && q->git->service >= GIT_FETCH && q->head->framing != HTTP_FRAMING_NONE;
}

static int refuse(Request *q, unsigned status, const char *reason, const char *message, Refusal *ret) {
        request_deny(q, q->head, status, reason, "git", message, ret);
        return REQUEST_E_REFUSED;
}

static int too_large(Request *q, Refusal *ret) {
        return refuse(q, 413, "body-too-large", "The request is larger than can be looked at.", ret);
}

static void fail(RequestGit *g, const char *error) {
        if (!g->error)
                g->error = error;
}

static int read_fetch(RequestGit *g, const uint8_t *data, size_t size, bool last) {
        int r = git_fetch_feed(&g->fetch, data, size, last);

        if (r == -EBADMSG)
                fail(g, g->fetch.error);
        return r == -EBADMSG ? 0 : r;
}

/* Whatever rule it is that allows it: what does not decode is not searched either. */
static int refuse_encoded(Request *q, Refusal *ret) {
        return refuse(q, 403, "git-unreadable", "The request cannot be read: its body is not the gzip that its head says.", ret);
}

/* In pieces, since a little may become much. What comes out is searched for sentinels as what came in would be, also when it is no request of git's. */
static int read_encoded(Request *q, const uint8_t *data, size_t size, bool last, Buffer *searched, Refusal *ret) {
        RequestGit *g = q->git;
        int r = 0;

        for (size_t i = 0; i < size && r == 0; i += PIECE) {
                Buffer decoded = {};

                r = gunzip_feed(g->gunzip, data + i, size - i < PIECE ? size - i : PIECE, &decoded);
                g->decoded += buffer_size(&decoded);
                if (r == -EBADMSG || r == -EFBIG || g->decoded > DECODED_MAX)
                        r = refuse_encoded(q, ret);
                else if (r == 0 && (r = read_fetch(g, buffer_data(&decoded), buffer_size(&decoded), false)) == 0)
                        r = request_feed_body(q, buffer_data(&decoded), buffer_size(&decoded), false, searched, ret);
                buffer_done(&decoded);
                buffer_clear(searched);
        }
        if (r != 0 || !last)
                return r;
        if (gunzip_finish(g->gunzip) < 0)
                return refuse_encoded(q, ret);
        r = read_fetch(g, NULL, 0, true);
        if (r == 0)
                r = request_feed_body(q, NULL, 0, true, searched, ret);
        buffer_clear(searched);
        /* and what leaves is what came: the names and comments that gzip has beside its content, and what is stored in it as it is */
        return r != 0 ? r : request_feed_body(q, buffer_data(&q->held), buffer_size(&q->held), true, searched, ret);
}

/* Servers of LFS are written in languages whose JSON readers know no case. */
static bool batch_is_disguised(const json_t *batch) {
        const json_t *objects = json_object_get(batch, "objects");

        if (json_has_lookalike(batch, "operation") || json_has_lookalike(batch, "objects") || json_has_lookalike(batch, "ref") ||
            json_has_lookalike(json_object_get(batch, "ref"), "name"))
                return true;
        for (size_t i = 0; i < json_array_size(objects); i++)
                if (json_has_lookalike(json_array_get(objects, i), "size"))
                        return true;
        return false;
}

static void read_batch(Request *q) {
        const char *data = (const char *) buffer_data(&q->held);
        _cleanup_json_ json_t *batch = NULL;

        if (json_parse(data, buffer_size(&q->held), &batch, NULL) < 0 || !json_is_object(batch)) {
                fail(q->git, "its body is no JSON object with each key once");
                return;
        }
        if (batch_is_disguised(batch)) {
                fail(q->git, "a key of its body is in another case than it should be");
                return;
        }
        json_decref(q->git->batch);
        q->git->batch = TAKE_PTR(batch);
}

static int hold_all(Request *q, const void *data, size_t size, bool last, Refusal *ret) {
        size_t most = q->git->service == GIT_FETCH ? FETCH_MAX : BATCH_MAX;
        Buffer searched = {};
        int r;

        if (size > most - buffer_size(&q->held))
                return too_large(q, ret);
        r = request_gather(q, size, ret);
        if (r != 0)
                return r;
        r = buffer_append(&q->held, data, size);
        if (r < 0)
                return r;
        if (q->git->gunzip)
                r = read_encoded(q, data, size, last, &searched, ret);
        else {
                if (q->git->service == GIT_FETCH)
                        r = read_fetch(q->git, data, size, last);
                if (r == 0)
                        r = request_feed_body(q, data, size, last, &searched, ret);
        }
        buffer_done(&searched);
        if (r != 0 || !last)
                return r;
        if (q->git->service == GIT_LFS_BATCH)
                read_batch(q);
        return request_settle_length(q);
}

int request_git_hold(Request *q, const void *data, size_t size, bool last, Refusal *ret) {
        int r;

        if (q->git->service != GIT_PUSH)
                return hold_all(q, data, size, last, ret);

        if (!request_may_gather(q, size))
                return too_large(q, ret);
        r = request_gather(q, size, ret);
        if (r != 0)
                return r;
        /* what was searched is held, since that goes on */
        r = request_feed_body(q, data, size, last, &q->held, ret);
        if (r != 0)
                return r;
        r = git_push_feed(q->git->push, data, size, last);
        if (r == GIT_PUSH_E_MALFORMED)
                fail(q->git, q->git->push->error);
        q->git->passing = r > 0 || last;
        return r <= 0 || last ? (r < 0 ? r : 0) : REQUEST_E_HELD;
}

/* ---- records ---- */

static json_t *list_refs(const GitPush *p) {
        json_t *refs = json_array();

        for (size_t i = 0; refs && i < p->n_commands && i < LISTED_MAX; i++) {
                const GitCommand *c = &p->commands[i];
                _cleanup_free_ char *ref = text_escape(c->ref, strnlen(c->ref, 256), false);

                if (!ref || json_array_append_new(refs, json_pack("{s:s, s:s, s:s, s:s}", "ref", ref, "before", c->before, "after", c->after, "change",
                                                                  git_change_to_string(c->change))) < 0) {
                        json_decref(refs);
                        return NULL;
                }
        }
        return refs;
}

static json_t *describe_push(const Request *q, const char *verdict, const char *reason) {
        const RequestGit *g = q->git;

        return json_pack("{s:s, s:s, s:i, s:s, s:s?, s:s*, s:o, s:i}", "repository", g->repository, "name", q->name, "port", (int) q->port, "verdict", verdict,
                         "rule", g->label, "reason", reason, "refs", list_refs(g->push), "n_refs", (int) g->push->n_commands);
}

/* Allowed fetches, and what is refused: alike ones within some seconds are one record. */
static void note(Request *q, const char *event, const char *verdict, const char *reason) {
        const RequestGit *g = q->git;
        _cleanup_free_ char *key = text_format("%s %s %s %s %s %d%d", g->repository, q->name, verdict, reason ?: "", g->fetch.command, g->fetch.shallow,
                                               g->fetch.partial);
        json_t *data;

        if (g->push)
                data = describe_push(q, verdict, reason);
        else
                data = json_pack("{s:s, s:s, s:i, s:s, s:s?, s:s*, s:s*, s:I, s:b, s:b}", "repository", g->repository, "name", q->name, "port", (int) q->port,
                                 "verdict", verdict, "rule", g->label, "reason", reason, "command",
                                 g->service == GIT_LFS_BATCH ? "lfs" : *g->fetch.command ? g->fetch.command : NULL, "wants", (json_int_t) g->fetch.n_wants,
                                 "shallow", g->fetch.shallow, "partial", g->fetch.partial);
        if (key)
                notes_add(q->context->notes, event, key, data);
        else
                json_decref(data);
}

bool request_git_must_record(const Request *q) {
        return q->git && q->git->rule && q->git->push && q->git->push->n_commands > 0 && !q->git->recorded;
}

json_t *request_git_record(const Request *q) {
        return describe_push(q, "allowed", NULL);
}

/* ---- judging ---- */

/* The first of a push's refs that may not become what it is to become. */
static const GitCommand *find_refused(const RequestGit *g, const char **ret_reason) {
        for (size_t i = 0; i < g->push->n_commands; i++) {
                *ret_reason = git_rule_check_ref(g->rule, g->push->commands[i].ref, g->push->commands[i].change);
                if (*ret_reason)
                        return &g->push->commands[i];
        }
        return NULL;
}

static int refuse_by(Request *q, const char *reason, const char *message, Refusal *ret) {
        bool push = q->git->push || q->git->service == GIT_ASK_PUSH;

        log_info("refused git's %s of %s at %s: %s", push ? "push" : "fetch", q->git->repository, q->name, reason);
        note(q, push ? "git.push" : "git.fetch", "refused", reason);
        refusal_set(ret, 403, reason, q->git->label ?: "default", message);
        return REQUEST_E_REFUSED;
}

static int refuse_pack(Request *q, Refusal *ret) {
        _cleanup_free_ char *message = text_format("The pack is larger than the %llu bytes that policy allows.",
                                                   (unsigned long long) git_rule_max_pack(q->git->rule));

        return refuse_by(q, "git-pack-size", message ?: "The pack is larger than policy allows.", ret);
}

/* What a person is told of a refused ref. */
static const char *reason_text(const char *reason) {
        static const struct {
                const char *reason, *text;
        } texts[] = {
                { "git-push", "nothing may be pushed here" },
                { "git-ref", "no ref that policy allows to be pushed to" },
                { "git-delete", "policy allows no deletion" },
                { "git-force", "not shown to be a fast-forward, and policy allows nothing else" },
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                if (strcmp(texts[i].reason, reason) == 0)
                        return texts[i].text;
        return reason;
}

static int judge_push(Request *q, Refusal *ret) {
        const GitCommand *refused;
        const char *reason;

        refused = find_refused(q->git, &reason);
        if (refused) {
                _cleanup_free_ char *message = text_format("%.200s: %s.", refused->ref, reason_text(reason));

                return refuse_by(q, reason, message ?: reason, ret);
        }
        return q->git->push->pack_size > git_rule_max_pack(q->git->rule) ? refuse_pack(q, ret) : 0;
}

/* An upload is a push of what a ref is going to need; the client says of which. */
static int judge_batch(Request *q, Refusal *ret) {
        const json_t *batch = q->git->batch, *objects = json_object_get(batch, "objects");
        const char *operation = json_string_value(json_object_get(batch, "operation")),
                   *ref = json_string_value(json_object_get(json_object_get(batch, "ref"), "name")), *reason;
        uint64_t size = 0, most = git_rule_max_pack(q->git->rule);

        if (!operation || (strcmp(operation, "download") != 0 && strcmp(operation, "upload") != 0) || !json_is_array(objects))
                return refuse_by(q, "git-unreadable", "The request is no batch of Git LFS.", ret);
        if (strcmp(operation, "download") == 0) {
                reason = git_rule_check_service(q->git->rule, GIT_FETCH);
                return reason ? refuse_by(q, reason, "Policy allows no fetches from this repository.", ret) : 0;
        }

        reason = git_rule_check_service(q->git->rule, GIT_PUSH);
        if (!reason)
                reason = ref ? git_rule_check_ref(q->git->rule, ref, GIT_CREATE) : "git-ref";
        if (reason)
                return refuse_by(q, reason, "Policy does not allow an upload for this ref.", ret);
        for (size_t i = 0; i < json_array_size(objects); i++) {
                json_int_t one = json_integer_value(json_object_get(json_array_get(objects, i), "size"));

                if (one < 0 || (uint64_t) one > most - size)
                        return refuse_pack(q, ret);
                size += (uint64_t) one;
        }
        return 0;
}

/* What is put in place without being asked for is for what a rule about git allows. */
static void drop_unasked(SubstitutePlan *plan) {
        size_t n = 0;

        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place->kind != PLACE_GIT)
                        plan->items[n++] = plan->items[i];
        plan->n_items = n;
}

int request_git_judge(Request *q, const EgressAnswer *a, Refusal *ret) {
        RequestGit *g = q->git;

        if (!a->git) {
                drop_unasked(&q->plan);
                return 0;
        }
        if (!g)
                return refuse(q, 403, "git-protocol", "Policy allows git's own requests here, and this is none.", ret);
        json_decref(g->rule);
        g->rule = json_incref((json_t *) a->git);
        free(g->label);
        g->label = text_escape(a->rule, strlen(a->rule), false);
        if (!g->label)
                return -ENOMEM;

        if (g->service >= GIT_FETCH && (!request_git_holds(q) || q->gathers || q->plan.n_body > 0))
                fail(g, "it has no body of its own");
        if (g->error) {
                _cleanup_free_ char *message = text_format("The request cannot be read: %s.", g->error);

                return refuse_by(q, "git-unreadable", message ?: "The request cannot be read.", ret);
        }
        if (g->service == GIT_PUSH)
                return judge_push(q, ret);
        if (g->service == GIT_LFS_BATCH) {
                int r = judge_batch(q, ret);

                if (r != 0)
                        return r;
        }
        if (g->service == GIT_FETCH || g->service == GIT_LFS_BATCH)
                note(q, "git.fetch", "allowed", NULL);
        return 0;
}

int request_git_pass(Request *q, const void *data, size_t size, bool last, Refusal *ret) {
        RequestGit *g = q->git;
        int r;

        r = git_push_feed(g->push, data, size, last);
        if (r < 0)
                return r;
        return g->rule && g->push->pack_size > git_rule_max_pack(g->rule) ? refuse_pack(q, ret) : 0;
}

/* ---- answers ---- */

typedef struct Why {
        const RequestGit *git;
        const Refusal *refusal;
        char text[128];
} Why;

static const char *why(const GitCommand *command, void *userdata) {
        Why *w = userdata;
        const char *reason = w->git->rule ? git_rule_check_ref(w->git->rule, command->ref, command->change) : NULL, *ignored;

        if (reason)
                return reason_text(reason);
        if (w->git->rule && find_refused(w->git, &ignored))
                return "another ref of this push was refused";
        (void) snprintf(w->text, sizeof(w->text), "refused by policy (%s)", w->refusal->reason);
        return w->text;
}

static int write_error(const RequestGit *g, const Refusal *refusal, Buffer *out) {
        _cleanup_free_ char *text = text_format("ERR anchorhold: %s", refusal->message);
        const char *service = g->service == GIT_ASK_FETCH ? "# service=git-upload-pack\n" : g->service == GIT_ASK_PUSH ? "# service=git-receive-pack\n" : NULL;
        int r = 0;

        if (!text)
                return -ENOMEM;
        if (service && (r = pkt_line_append(out, service, strlen(service))) >= 0)
                r = pkt_line_append_flush(out);
        return r < 0 ? r : pkt_line_append(out, text, strlen(text));
}

static int write_report(const RequestGit *g, const Refusal *refusal, Buffer *out) {
        bool whole = strcmp(refusal->reason, "git-pack-size") == 0 || strcmp(refusal->reason, "git-unreadable") == 0;

        return git_push_write_report(g->push, whole ? refusal->message : "ok", why, &(Why) { .git = g, .refusal = refusal }, out);
}

static int write_batch_error(const Refusal *refusal, Buffer *out) {
        _cleanup_json_ json_t *body = json_pack("{s:s, s:s}", "message", refusal->message, "reason", refusal->reason);
        _cleanup_free_ char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

        return text ? buffer_append_text(out, text) : -ENOMEM;
}

bool request_git_answer(const Request *q, const Refusal *refusal, RefusalAnswer *ret) {
        static const char *const types[] = {
                [GIT_ASK_FETCH] = "application/x-git-upload-pack-advertisement",
                [GIT_ASK_PUSH] = "application/x-git-receive-pack-advertisement",
                [GIT_FETCH] = "application/x-git-upload-pack-result",
                [GIT_PUSH] = "application/x-git-receive-pack-result",
                [GIT_LFS_BATCH] = "application/vnd.git-lfs+json",
        };
        const RequestGit *g = q->git;
        bool refused = refusal->status == 403 || refusal->status == 413;
        int r;

        if (!g || !refused)
                return false;
        switch (g->service) {
        case GIT_PUSH:
                r = write_report(g, refusal, &ret->body);
                break;
        case GIT_LFS_BATCH:
                r = write_batch_error(refusal, &ret->body);
                break;
        default:
                r = write_error(g, refusal, &ret->body);
        }
        if (r < 0) {
                buffer_clear(&ret->body);
                return false;
        }
        ret->type = types[g->service];
        ret->status = g->service == GIT_LFS_BATCH ? refusal->status : 200;
        ret->late = g->service == GIT_PUSH;
        return true;
}
