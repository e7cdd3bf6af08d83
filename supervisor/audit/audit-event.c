/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The table of events. Its names and message ids are an interface: an id is never used for anything else, and
 * an event that nobody writes any more stays, so that old logs still verify. units/catalog/anchorhold.catalog
 * explains each id to an operator; a test compares the two lists.
 *
 * `writers` is the whole of who may write an event. A unit of a run writes for its own run only
 * (audit-server.c), so that a compromised proxy can spoil no other run's evidence, and none of what other parts of its own
 * run say.
 */
#include "audit/audit-event.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "util/cleanup.h"
#include "util/json.h"
#include "util/text.h"

enum { VALUE_MAX = 200 };

static const AuditEvent events[] = {
        { "run.leased", PEER_ANCHORD, AUDIT_NEEDS_RUN | AUDIT_NEEDS_ITEM, LOG_INFO, "a33c61bca19c4831a0ca5c65f57b92cd",
          "Run {run} was leased for item {item}[, workflow {workflow}][, stage {stage}][, attempt {attempt}]" },
        { "run.started", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_INFO, "5debe3fc223c4d4d9897df997c1107ec",
          "Run {run} started[ on template {template}][ with {accel}]" },
        { "run.boot_retry", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_WARNING, "4370865100c7440b86179388d295564d",
          "The microVM of run {run} did not answer and is booted once more[: {reason}]" },
        { "run.finished", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_INFO, "facb0169b3174bc3843899dfc1ed5a85",
          "Run {run} finished[: {outcome}][, {reason}]" },
        { "run.stopped", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_NOTICE, "419eadbfa9fb4f7fa23846a40e357b06",
          "Run {run} was stopped by {actor}[: {reason}]" },
        { "item.submitted", PEER_ANCHORD, AUDIT_NEEDS_ITEM, LOG_INFO, "fed63e472f2a4af782306f5ea5022311",
          "Item {item} was submitted by {actor}[ for workflow {workflow}]" },
        { "item.transition", PEER_ANCHORD, AUDIT_NEEDS_ITEM, LOG_INFO, "d5f2589eb45a40709e5c93a6bdd9e10d",
          "Item {item} went[ from {from}] to {to}[: {reason}]" },
        { "item.template", PEER_ANCHORD, AUDIT_NEEDS_ITEM, LOG_NOTICE, "8e1f4b6a90d24c73b5e2a7c61d3f0958",
          "Item {item} is worked on with template {digest}, that of this image; before, it was bound to {previous}" },
        { "hold.set", PEER_ANCHORD, 0, LOG_NOTICE, "9c7f4049815f45afb46695f9588230b7",
          "Leases are held by {actor}[: {reason}]" },
        { "hold.released", PEER_ANCHORD, 0, LOG_NOTICE, "c3e158c4164745c5a4e97590447c4be9",
          "Leases were released by {actor}" },
        { "drain.begun", PEER_ANCHORD, 0, LOG_NOTICE, "7d0a1c35b0b84a7c8f6a9c0f35a7e2d1",
          "This host is drained by {actor}[: {reason}]" },
        { "drain.ended", PEER_ANCHORD, 0, LOG_NOTICE, "b1f27a4e09e14c2c9d3b8f5e6a70c4d8",
          "This host takes up work again, by {actor}" },
        { "space.low", PEER_ANCHORD, 0, LOG_WARNING, "35d026943bf9e1973fb8b4e46daa83db",
          "{free} bytes are free, fewer than the {reserve} that are kept in reserve: nothing is leased" },
        { "space.back", PEER_ANCHORD, 0, LOG_NOTICE, "15115fab9dc6adffd33e2c471fafffb8",
          "{free} bytes are free again, with {reserve} kept in reserve" },
        { "space.pruned", PEER_ANCHORD, 0, LOG_NOTICE, "675501bc7e84b2a4da629178b275b220",
          "Files of items that have ended are removed for {actor}: bundles {bundles}, logs {logs}" },
        { "policy.loaded", PEER_ANCHORD | PEER_EGRESSD | PEER_SECRETD, 0, LOG_INFO, "97e2640bd2664eb99dcce4c1fcfbcf5c",
          "Policy {digest} was loaded[, {findings} findings]" },
        { "policy.waits", PEER_ANCHORD, 0, LOG_WARNING, "c7a05b1e3f0d4a6f9be2d8147c93e5a6",
          "The site's policy is {digest} since this host runs another deployment; before, it was {previous}: nothing is leased" },
        { "policy.accepted", PEER_ANCHORD, 0, LOG_NOTICE, "e4d9167a20bb4c0f8f6b3a5c1d7e9204",
          "{actor} accepted the site's policy {digest} in place of {previous}" },
        { "policy.changed", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_NOTICE, "012d7736678146d3814bcb619828f651",
          "The egress policy of run {run} was changed by {actor}: {change}[ {rule}][, policy {digest}]" },
        { "egress.allow", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_INFO, "2ea99d53cefd405f83df1736aa3ef568",
          "Run {run} may connect to {name}:{port}[ at {addresses}][ by {rule}]" },
        { "egress.deny", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_NOTICE, "ce80a27dbfea450a9086e19420752974",
          "Run {run} may not connect to {name}[:{port}][: {reason}][, {rule}][ (×{count})]" },
        { "dns.allow", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_INFO, "ef4aff1c1a3444768b0e8ba10931cff5",
          "Run {run} looked up {name}[, {address}][ by {rule}]" },
        { "dns.refused", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_NOTICE, "345d0b6f5f5449a39f813ffbbb5f3481",
          "Run {run} was refused the name {name}[, {rule}][ (×{count})]" },
        { "egress.registered", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_INFO, "76b9402d48674494836a36c52f763593",
          "Run {run} was registered for egress[, workflow {workflow}][, stage {stage}][, policy {digest}]" },
        { "egress.released", PEER_EGRESSD, AUDIT_NEEDS_RUN, LOG_INFO, "6342d561b38b47fd88efc3365a3ef551",
          "Run {run} was released from egress" },
        { "conn.open", PEER_PROXY | PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "48f3d3835c8a44589ee156509bd54e32",
          "Run {run} opened a connection to {name}:{port}[, {verdict}]" },
        { "conn.close", PEER_EGRESSD | PEER_PROXY | PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "3b3637a4ee6a489d813448f8098710af",
          "Run {run} closed a connection[ to {name}][:{port}][, {bytes_in} bytes in][, {bytes_out} out][: {reason}][ (×{count})]" },
        { "conn.deny", PEER_PROXY | PEER_INJECT | PEER_NETLOG, AUDIT_NEEDS_RUN, LOG_NOTICE, "903503554da64fbcba4b7ea34092a86d",
          "Run {run} was denied a connection[ to {name}][:{port}][: {reason}][ (×{count})]" },
        { "egress.requests", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "6d0f7c1be2a94c58a1f36b0c8e5d2947",
          "Run {run} made {count} more requests on connections to {name}:{port}" },
        { "model.call", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "66920dc6ac4e4c1cb0949d2574903767",
          "Run {run} called a model[ {model}][ of {provider}][, status {status}][, {input_tokens} tokens in][, {output_tokens} out][, {cost_microusd} microdollars]" },
        { "budget.soft", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_NOTICE, "8ab0a48f3e1e458991c1633f646d91f9",
          "Run {run} has used or reserved {percent} % of a cap of {cap}: {what} of the {scope}" },
        { "budget.exceeded", PEER_ANCHORD, AUDIT_NEEDS_RUN, LOG_WARNING, "53bd9601198e46c28c75192b2e4f2630",
          "Run {run} is {reason}: it makes no further model call" },
        { "credential.used", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "f0732c63a3ae46938e2544766b565f38",
          "Run {run} used credential {credential}[ at {name}][ for {method}][ {path}]" },
        { "credential.misuse", PEER_INJECT | PEER_PROXY, AUDIT_NEEDS_RUN, LOG_ERR, "739f95f49f94445580125b69c6375937",
          "Run {run} tried to send the sentinel of credential {credential} elsewhere[: {name}][, {reason}]" },
        { "git.push", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_NOTICE, "378870852aed47a0b8773ce7766a2d73",
          "Run {run} pushes to {repository} at {name}: {verdict}[, {reason}][, {n_refs} refs][, {rule}][ (×{count})]" },
        { "git.fetch", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_INFO, "fd9b751b663d42379b0bb28866c7642d",
          "Run {run} fetches from {repository} at {name}: {verdict}[, {reason}][, {rule}][ (×{count})]" },
        { "credential.added", PEER_ROOT, 0, LOG_NOTICE, "12ffbaac3b834441b394308da376786b",
          "{actor} adds the value of credential {credential}[ for {sudo_user}]" },
        { "credential.rotated", PEER_ROOT, 0, LOG_NOTICE, "876e18c97f1547c39ed34017659350f9",
          "{actor} replaces the value of credential {credential}[ for {sudo_user}]" },
        { "credential.removed", PEER_ROOT, 0, LOG_NOTICE, "34ca5a5a5c8543f98eb5aceeae05b25b",
          "{actor} removes the value of credential {credential}[ for {sudo_user}]" },
        { "secret.registered", PEER_SECRETD, AUDIT_NEEDS_RUN, LOG_INFO, "f8fa8b5656fc46c0938687274d838318",
          "Run {run} got its CA and sentinels[ for {credentials}]" },
        { "secret.released", PEER_SECRETD, AUDIT_NEEDS_RUN, LOG_INFO, "d12d925bedf6444d992a29feeecc1cf1",
          "The CA and sentinels of run {run} were dropped" },
        { "secret.denied", PEER_SECRETD, 0, LOG_ERR, "6f8f71ee77404d79b2aa1f7fb8d21244",
          "A credential was refused[ to {peer}][, which claimed to be {claimed}][: {reason}]" },
        { "token.minted", PEER_SECRETD, AUDIT_NEEDS_RUN, LOG_INFO, "b5c9f3a2e86d4c07a1d47f0e92b6385c",
          "Run {run} got token {token} of credential {credential} for {repository}[, permissions {permissions}][, until {expires}]" },
        { "token.failed", PEER_INJECT, AUDIT_NEEDS_RUN, LOG_WARNING, "70d1be4c95a84f6e8c23a9d6f14e7b08",
          "Run {run}: {what} of credential {credential} failed[: {reason}][, status {status}][, {detail}]" },
        { "token.revoked", PEER_SECRETD, AUDIT_NEEDS_RUN, LOG_INFO, "1ee6a9c07b3d42f59d80c5b7ae264f93",
          "Token {token} of run {run}, credential {credential}, was revoked[, status {status}]" },
        { "token.unrevoked", PEER_SECRETD, 0, LOG_WARNING, "c82f4d5b6a1e4390b7f2608d3e9a51c4",
          "A token[ {token}][ of run {run}][, credential {credential}] was not revoked[: {reason}][ (×{count})]" },
        { "run.step", PEER_RUN, AUDIT_NEEDS_RUN, LOG_INFO, "db8142bc399246b0a5e9ea49f419afec",
          "Run {run}: step {step}[ {state}][, exit {exit}][, signal {signal}]" },
        { "run.guest", PEER_RUN, AUDIT_NEEDS_RUN, LOG_INFO, "ebca7d2cb65a4b24b6e14f29db567c65",
          "Run {run}: the guest reports {kind}[: {text}]" },
        { "run.verdict", PEER_RUN, AUDIT_NEEDS_RUN, LOG_NOTICE, "9beef03e18cb4417a50e1e6ae8c3ca32",
          "Run {run}: verdict {outcome}[: {reason}]" },
        { "channel.error", PEER_RUN, AUDIT_NEEDS_RUN, LOG_WARNING, "02001685233146f4ba78a66714b9036f",
          "Run {run}: the guest broke the channel's protocol[: {reason}]" },
        { "import.accepted", PEER_IMPORT, AUDIT_NEEDS_RUN, LOG_INFO, "a1a68566352944aab83e48dfad322682",
          "Run {run}: commit {commit} was accepted" },
        { "import.rejected", PEER_IMPORT, AUDIT_NEEDS_RUN, LOG_NOTICE, "155b6017985148dba1dbf337ec22d602",
          "Run {run}: the result was rejected[: {reason}]" },
        { "audit.started", PEER_AUDITD, 0, LOG_INFO, "24f73ec41222454d90e9b34688b86d25",
          "The audit log goes on after record {head}[, {waiting} records waited in the outbox][, {recovered} records were taken over from the journal]" },
        { "audit.checkpoint", PEER_AUDITD, 0, LOG_INFO, "4cd4074c9bf9463ba7907ad83f6e776e",
          "Records up to {seq} are signed" },
        { "audit.resent", PEER_AUDITD, 0, LOG_NOTICE, "83a5be20798b4577a3e09e48c9a9d66a",
          "Records {first} to {last} were not in the journal and have been sent again" },
        { "audit.limited", PEER_AUDITD, 0, LOG_ERR, "b6e02d57c94f4a1d8f3b7a60d15c8e29",
          "{unit} has used up its share of the audit log ({share}): what more it sends is refused" },
        { "enforcer.lost", PEER_ANCHORD | PEER_EGRESSD, 0, LOG_ERR, "5eeea7d3469f42758d7f0d97be0b9055",
          "{enforcer} does not answer[: {reason}]" },
        { "enforcer.back", PEER_ANCHORD | PEER_EGRESSD, 0, LOG_NOTICE, "68a767b7bf564268a8825095a78304b9",
          "{enforcer} answers again" },
        { "enforcement.mismatch", PEER_CHECK, AUDIT_NEEDS_RUN, LOG_ERR, "6b47aa450ba75c3a887ecb4826a3cf9e",
          "Run {run} is stopped: its enforcers do not agree[: {reason}]" },
        { "egress.totals", PEER_NET, AUDIT_NEEDS_RUN, LOG_INFO, "db397e06a93f57b9bfef2ba8f84a7f54",
          "Run {run}: {rejected} packets of the guest were rejected, {logged} of them logged one by one" },
        { "host.upgrade", PEER_ROOT, 0, LOG_NOTICE, "5a1d6f0e3c1b4f7f9a0c6f1f4d2b7e90",
          "{actor} stages image {digest}[ of {image}][ after {from}]" },
        { "host.rollback", PEER_ROOT, 0, LOG_NOTICE, "e2b84c5d70f34b5b8d1e0a9c7f6b3a12",
          "{actor} goes back to image {digest}[ from {from}]" },
        { "host.healthy", PEER_ROOT, 0, LOG_NOTICE, "0c9e7d3b5f8a4e1cb2a64d8f1e7c5039",
          "Image {digest} passed its first health check on this host" },
        { "host.unhealthy", PEER_ROOT, 0, LOG_ERR, "93f5b0a17c2e4d68a7d91b4e6c80f2d5",
          "A boot failed its health check: {reason}[; no way back: {stays}]" },
        { "host.rolled_back", PEER_ROOT, 0, LOG_ERR, "48d2c6e91a7b4f03bc5e0f7a9d1360e8",
          "Image {digest} failed its health check[ on {time}] and was left: {reason}" },
        { "host.accepted", PEER_ROOT, 0, LOG_NOTICE, "7e41c9d05f2b4a86b3d8e60a1c97f524",
          "{actor} lets image {digest} be tried again[, which was rejected on {time}][: {reason}]" },
        { "image.newer", PEER_ANCHORD, 0, LOG_NOTICE, "5b0c84f2a9d7432e9c11e06fd3a8b7c4",
          "Another image of this host left an event that this one does not know: {event}" },
        { "approval.recorded", PEER_OPERATOR, AUDIT_NEEDS_ITEM, LOG_NOTICE, "4ee32c36a9f04024aa7b4c44e1c4a846",
          "{actor} gave the verdict {verdict} on item {item}[, commit {commit}][: {reason}]" },
};

const AuditEvent *audit_event_list(size_t *ret_n) {
        *ret_n = ELEMENTSOF(events);
        return events;
}

const AuditEvent *audit_event_find(const char *name) {
        for (size_t i = 0; name && i < ELEMENTSOF(events); i++)
                if (strcmp(events[i].name, name) == 0)
                        return &events[i];

        return NULL;
}

typedef struct Scope {
        const char *run, *item, *actor;
        const json_t *data;
} Scope;

static bool is_list_of_strings(const json_t *j) {
        size_t i;
        json_t *element;

        if (!json_is_array(j))
                return false;
        json_array_foreach(j, i, element)
                if (!json_is_string(element))
                        return false;

        return true;
}

static char *join(const json_t *list) {
        char *text = NULL;
        json_t *element;
        size_t i, size;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return NULL;
        json_array_foreach(list, i, element)
                (void) fprintf(f, "%s%s", i > 0 ? ", " : "", json_string_value(element));
        if (fclose(f) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

/* What "{key}" stands for, not yet escaped; NULL if there is nothing or it is empty. *ret_failed when out of memory. */
static char *scope_value(const Scope *scope, const char *key, bool *ret_failed) {
        const json_t *j = json_object_get(scope->data, key);
        const char *text = NULL;
        char *value;

        if (strcmp(key, "run") == 0)
                text = scope->run;
        else if (strcmp(key, "item") == 0)
                text = scope->item;
        else if (strcmp(key, "actor") == 0)
                text = scope->actor;
        else if (json_is_string(j))
                text = json_string_value(j);
        else if (j && !json_is_null(j)) {
                value = is_list_of_strings(j) ? join(j) : json_canonical(j);
                *ret_failed |= !value;
                return value && *value ? value : (free(value), NULL);
        }
        if (!text || !*text)
                return NULL;

        value = strdup(text);
        *ret_failed |= !value;
        return value;
}

/* Writes one value. True if there was one. */
static bool render_value(FILE *out, const Scope *scope, const char *key, bool *ret_failed) {
        _cleanup_free_ char *value = scope_value(scope, key, ret_failed), *text = NULL;
        size_t size;

        if (!value)
                return false;

        size = strlen(value);
        text = text_escape(value, size > VALUE_MAX ? VALUE_MAX : size, false);
        *ret_failed |= !text;
        (void) fputs(text ?: "", out);
        if (size > VALUE_MAX)
                (void) fputs("…", out);
        return true;
}

/* Renders up to `end` (or the end of the text). False if a key had no value. */
static bool render_part(FILE *out, const Scope *scope, const char **p, char end, bool *ret_failed) {
        bool complete = true;

        while (**p && **p != end) {
                if (**p == '{') {
                        size_t length = strcspn(*p + 1, "}");
                        char key[64];

                        (void) snprintf(key, sizeof(key), "%.*s", (int) length, *p + 1);
                        *p += length + 2;
                        if (!render_value(out, scope, key, ret_failed)) {
                                (void) fputc('?', out);
                                complete = false;
                        }
                } else
                        (void) fputc(*(*p)++, out);
        }

        return complete;
}

/* What is in brackets: kept only if it was complete. */
static void render_optional(FILE *out, const Scope *scope, const char **p, bool *ret_failed) {
        _cleanup_free_ char *text = NULL;
        bool complete;
        size_t size;
        FILE *part;

        part = open_memstream(&text, &size);
        if (!part) {
                *ret_failed = true;
                return;
        }

        complete = render_part(part, scope, p, ']', ret_failed);
        *ret_failed |= fclose(part) != 0;
        if (complete && text)
                (void) fputs(text, out);
        if (**p == ']')
                (*p)++;
}

char *audit_event_render(const AuditEvent *event, const char *run, const char *item, const char *actor, const json_t *data) {
        const Scope scope = { .run = run, .item = item, .actor = actor, .data = data };
        const char *p = event->template;
        bool failed = false;
        char *text = NULL;
        size_t size;
        FILE *out;

        out = open_memstream(&text, &size);
        if (!out)
                return NULL;

        while (*p) {
                (void) render_part(out, &scope, &p, '[', &failed);
                if (*p == '[') {
                        p++;
                        render_optional(out, &scope, &p, &failed);
                }
        }

        if (fclose(out) != 0 || failed) {
                free(text);
                return NULL;
        }
        return text;
}
