/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* anchord's place in the world of an exchange, as far as budgets go: it says what a test wants, and counts. */

#include "exchange-world.h"
#include "inject/budget.h"

static struct Anchord {
        bool capped, silent, lower;
        int64_t summary, room_tokens; /* room -1: no cap on tokens */
        unsigned n_reserved, n_refused, n_taken, n_unreserved, n_over, n_terms;
        json_int_t last_output, calls; /* the latter: made before */
        char over[256];
} anchord;

static inline int on_get_budget(IpcCall *call, json_t *params, void *userdata) {
        anchord.n_terms++;
        return ipc_call_reply(call, json_pack("{s:b, s:I, s:I}", "capped", (int) anchord.capped, "summary_tokens", (json_int_t) anchord.summary, "calls",
                                              anchord.calls));
}

static inline int on_reserve(IpcCall *call, json_t *params, void *userdata) {
        json_int_t in = json_integer_value(json_object_get(params, "input_tokens")), out = json_integer_value(json_object_get(params, "output_tokens"));
        bool taken = json_is_true(json_object_get(params, "taken"));

        if (anchord.silent) /* the answer comes too late for everybody */
                return ipc_call_refuse(call, "Unavailable", "not now");
        if (!anchord.capped)
                return ipc_call_reply(call, json_pack("{s:b, s:b}", "capped", 0, "granted", 1));
        anchord.last_output = out;
        anchord.n_taken += taken;
        if (!taken && anchord.room_tokens >= 0 && in + out > anchord.room_tokens) {
                anchord.n_refused++;
                return ipc_call_reply(call, json_pack("{s:b, s:b, s:b, s:I, s:I, s:s}", "capped", 1, "granted", 0, "lower", (int) anchord.lower,
                                                      "summary_tokens", (json_int_t) anchord.summary, "room_tokens", (json_int_t) anchord.room_tokens,
                                                      "reason", "over budget: said so"));
        }
        anchord.n_reserved++;
        return ipc_call_reply(call, json_pack("{s:b, s:b, s:{s:i, s:i, s:i}}", "capped", 1, "granted", 1, "block", "requests", 1, "tokens", 2000, "cost_microusd", 2000000));
}

static inline int on_unreserve(IpcCall *call, json_t *params, void *userdata) {
        anchord.n_unreserved++;
        return ipc_call_reply(call, NULL);
}

static inline int on_over_budget(IpcCall *call, json_t *params, void *userdata) {
        anchord.n_over++;
        (void) snprintf(anchord.over, sizeof(anchord.over), "%s", json_string_value(json_object_get(params, "reason")));
        return ipc_call_reply(call, NULL);
}

static const IpcMethod budget_methods[] = {
        { "io.anchorhold.Run.AddUsage", PEER_ROOT, on_add_usage },
        { "io.anchorhold.Run.GetBudget", PEER_ROOT, on_get_budget },
        { "io.anchorhold.Run.Reserve", PEER_ROOT, on_reserve },
        { "io.anchorhold.Run.Unreserve", PEER_ROOT, on_unreserve },
        { "io.anchorhold.Run.OverBudget", PEER_ROOT, on_over_budget },
        {},
};

/* The world's run gets a budget, by a provider whose calls can be counted. */
static inline void budget_world_begin(World *w) {
        json_t *provider = w->credentials[0].source->provider;

        (void) memset(&anchord, 0, sizeof(anchord));
        anchord.capped = true;
        anchord.room_tokens = -1;
        w->servers[2] = ipc_server_free(w->servers[2]);
        serve(w, 2, budget_methods, RUN_API_SOCKET);
        (void) json_object_set_new(provider, "api", json_string("anthropic-messages"));
        (void) json_object_set_new(provider, "request", json_pack("{s:[s], s:[s], s:[s], s:i}", "model", "/model", "max_tokens", "/max_tokens", "choices", "/n",
                                                                  "max_tokens_default", 500));
        (void) json_object_set_new(provider, "free", json_pack("[{s:s, s:s}]", "method", "GET", "path", "/v1/models"));
        assert_int_equal(budget_new(&w->context.budget, w->event, RUN_API_SOCKET), 0);
}

static inline void budget_world_end(World *w) {
        w->context.budget = budget_free(w->context.budget);
        assert_int_equal(w->context.gathered, 0);
        assert_int_equal(w->context.n_metered, 0);
}
