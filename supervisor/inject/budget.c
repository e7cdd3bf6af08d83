/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchord decides about each call (io.anchorhold.Run.Reserve), since only it knows what other runs have. With each answer comes the block
 * that this run has beside its reservations. If anchord does not answer within ANSWER_USEC, because it is being restarted, a call that fits into
 * the block is taken from there, and recorded as taken as soon as anchord is back; another waits until then, or is refused
 * after PATIENCE_USEC. While something taken is not recorded, the block only shrinks: what anchord says meanwhile does not know of it.
 *
 * A reservation ends with the report of the call (usage-report.c), under the same id, or with budget_release(). If this process dies, anchord
 * sees another `life` and charges what this one had reserved.
 *
 * Both lists are bounded; a full one refuses.
 */

#include "inject/budget.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define RUN "io.anchorhold.Run."
#define ANSWER_USEC (1500ULL * 1000)
#define AGAIN_USEC (500ULL * 1000)
#define PATIENCE_USEC (15ULL * 1000 * 1000)
#define NUMBER_MAX (1ULL << 40) /* what anchord takes */

enum { PARALLEL = 16, ASKS_MAX = 512, NOTICES_MAX = 1024 };

/* What anchord must still hear: a call that was taken from the block, or one that did not leave. */
typedef struct Notice {
        Budget *budget; /* borrowed */
        struct Notice *next;
        const char *method; /* static */
        json_t *params;     /* ref */
        bool taken, under_way;
} Notice;

struct BudgetAsk {
        Budget *budget; /* borrowed */
        BudgetAsk *next, **prev;
        json_t *params; /* ref */
        char call[BUDGET_CALL_SIZE];
        uint64_t tokens, cost, since_usec;
        BudgetDone done; /* NULL once nobody waits */
        void *userdata;
        bool under_way, spent; /* the latter: to be freed by its callback */
};

struct Budget {
        sd_event *event;   /* ref */
        IpcClient *client; /* owned */
        sd_event_source *timer; /* owned */
        char life[20];
        bool known, capped, asking, over;
        bool told;               /* what it asks for at its beginning */
        uint64_t earlier_calls;
        uint64_t summary_tokens;
        uint64_t block_requests, block_tokens, block_cost;
        BudgetAsk *asks;
        Notice *notices; /* oldest first */
        size_t n_asks, n_notices, n_taken;
};

static void arm(Budget *b) {
        (void) sd_event_source_set_time_relative(b->timer, AGAIN_USEC);
        (void) sd_event_source_set_enabled(b->timer, SD_EVENT_ONESHOT);
}

/* ---- what must still be said ---- */

static void notice_drop(Notice *n) {
        for (Notice **p = &n->budget->notices; *p; p = &(*p)->next)
                if (*p == n) {
                        *p = n->next;
                        n->budget->n_notices--;
                        break;
                }
        n->budget->n_taken -= n->taken;
        json_unref(n->params);
        free(n);
}

static void notice_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Notice *n = userdata;

        n->under_way = false;
        if (!error || strcmp(error, RUN "NoSuchRun") == 0 || strcmp(error, RUN "BadInput") == 0)
                notice_drop(n);
        else
                arm(n->budget);
}

static void notices_send(Budget *b) {
        for (Notice *n = b->notices; n; n = n->next) {
                if (n->under_way)
                        continue;
                if (n->taken)
                        (void) json_object_set_new(n->params, "more_taken", json_boolean(b->n_taken > 1));
                n->under_way = ipc_client_call_async(b->client, n->method, json_incref(n->params), NULL, 0, false, ANSWER_USEC * 4, notice_on_reply, n) >= 0;
                if (!n->under_way)
                        arm(b);
        }
}

/* Takes params over. */
static int notice_add(Budget *b, const char *method, json_t *params, bool taken) {
        Notice *n = params && b->n_notices < NOTICES_MAX ? calloc(1, sizeof(*n)) : NULL, **end = &b->notices;

        if (!n) {
                json_unref(params);
                return -ENOBUFS;
        }
        *n = (Notice) { .budget = b, .method = method, .params = params, .taken = taken };
        while (*end)
                end = &(*end)->next;
        *end = n;
        b->n_notices++;
        b->n_taken += taken;
        return 0;
}

void budget_release(Budget *b, const char *call) {
        if (notice_add(b, RUN "Unreserve", json_pack("{s:s}", "call", call), false) < 0)
                log_warning("a call that did not leave stays reserved");
        notices_send(b);
}

void budget_over(Budget *b, const char *reason) {
        if (b->over)
                return;
        b->over = true;
        if (notice_add(b, RUN "OverBudget", json_pack("{s:s}", "reason", reason), false) < 0)
                log_warning("anchord cannot be told that the run is over budget");
        notices_send(b);
}

/* ---- asking ---- */

static void ask_drop(BudgetAsk *a) {
        *a->prev = a->next;
        if (a->next)
                a->next->prev = a->prev;
        a->budget->n_asks--;
        json_unref(a->params);
        free(a);
}

BudgetAsk *budget_ask_free(BudgetAsk *a) {
        if (!a)
                return NULL;
        a->done = NULL;
        if (a->under_way) {
                a->spent = true;
                return NULL;
        }
        /* anchord may have it from a try that timed out */
        budget_release(a->budget, a->call);
        ask_drop(a);
        return NULL;
}

static void ask_settle(BudgetAsk *a, const BudgetAnswer *answer) {
        BudgetDone done = a->done;
        void *userdata = a->userdata;

        ask_drop(a);
        if (done)
                done(answer, userdata);
}

static uint64_t number(const json_t *params, const char *key) {
        const json_t *n = json_object_get(params, key);

        return json_is_integer(n) && json_integer_value(n) >= 0 ? (uint64_t) json_integer_value(n) : BUDGET_NO_CAP;
}

static void take_terms(Budget *b, const json_t *params) {
        uint64_t summary = number(params, "summary_tokens");

        b->known = true;
        b->capped = json_is_true(json_object_get(params, "capped"));
        b->summary_tokens = summary == BUDGET_NO_CAP ? 0 : summary;
        if (b->n_taken == 0) {
                const json_t *block = json_object_get(params, "block");
                uint64_t *const to[] = { &b->block_requests, &b->block_tokens, &b->block_cost };
                static const char *const keys[] = { "requests", "tokens", "cost_microusd" };

                for (size_t i = 0; block && i < ELEMENTSOF(to); i++) {
                        *to[i] = number(block, keys[i]);
                        if (*to[i] == BUDGET_NO_CAP)
                                *to[i] = 0;
                }
        }
}

static bool fits_block(const Budget *b, const BudgetAsk *a) {
        return b->capped && b->block_requests >= 1 && b->block_tokens >= a->tokens && b->block_cost >= a->cost;
}

/* Nobody answers: 1 if the call may leave all the same. */
static int take_from_block(BudgetAsk *a) {
        Budget *b = a->budget;
        json_t *params;

        if (!fits_block(b, a) || json_is_true(json_object_get(a->params, "summary")))
                return 0;
        params = json_copy(a->params);
        if (!params || json_object_set_new(params, "taken", json_true()) < 0) {
                json_unref(params);
                return 0;
        }
        if (notice_add(b, RUN "Reserve", params, true) < 0)
                return 0;
        b->block_requests--;
        b->block_tokens -= a->tokens;
        b->block_cost -= a->cost;
        arm(b);
        log_info("anchord does not answer: a model call is taken from what was granted ahead");
        return 1;
}

static void ask_failed(BudgetAsk *a) {
        BudgetAnswer answer = { .verdict = BUDGET_GRANTED, .room_tokens = BUDGET_NO_CAP, .room_cost = BUDGET_NO_CAP };

        if (take_from_block(a)) {
                ask_settle(a, &answer);
                return;
        }
        if (time_boottime() - a->since_usec < PATIENCE_USEC) {
                arm(a->budget);
                return;
        }
        answer.verdict = BUDGET_UNAVAILABLE;
        (void) snprintf(answer.reason, sizeof(answer.reason), "The run's budget cannot be asked for.");
        budget_release(a->budget, a->call);
        ask_settle(a, &answer);
}

static void ask_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        BudgetAsk *a = userdata;
        BudgetAnswer answer = {};
        const char *text;

        a->under_way = false;
        if (a->spent) {
                budget_release(a->budget, a->call);
                ask_drop(a);
                return;
        }
        if (error) {
                log_debug("the budget is not answered for: %s", error);
                ask_failed(a);
                return;
        }

        take_terms(a->budget, params);
        answer.verdict = json_is_true(json_object_get(params, "granted")) ? BUDGET_GRANTED : BUDGET_REFUSED;
        answer.room_tokens = number(params, "room_tokens");
        answer.room_cost = number(params, "room_cost");
        answer.lower = json_is_true(json_object_get(params, "lower"));
        answer.summary_tokens = a->budget->summary_tokens;
        text = json_string_value(json_object_get(params, "cap"));
        (void) snprintf(answer.cap, sizeof(answer.cap), "%s", text ? text : "");
        text = json_string_value(json_object_get(params, "reason"));
        (void) snprintf(answer.reason, sizeof(answer.reason), "%s", text ? text : "");
        ask_settle(a, &answer);
}

static void ask_send(BudgetAsk *a) {
        (void) json_object_set_new(a->params, "more_taken", json_boolean(a->budget->n_taken > 0));
        a->under_way = ipc_client_call_async(a->budget->client, RUN "Reserve", json_incref(a->params), NULL, 0, false, ANSWER_USEC, ask_on_reply, a) >= 0;
        if (!a->under_way)
                arm(a->budget);
}

static json_int_t bounded(uint64_t n) {
        return (json_int_t) (n < NUMBER_MAX ? n : NUMBER_MAX);
}

int budget_reserve(Budget *b, const BudgetNeed *need, BudgetDone done, void *userdata, BudgetAsk **ret) {
        BudgetAsk *a;

        if (b->n_asks >= ASKS_MAX)
                return -EBUSY;
        a = calloc(1, sizeof(*a));
        if (!a)
                return -ENOMEM;
        *a = (BudgetAsk) {
                .budget = b,
                .tokens = need->input_tokens + need->output_tokens,
                .cost = need->cost_microusd,
                .since_usec = time_boottime(),
                .done = done,
                .userdata = userdata,
        };
        memcpy(a->call, need->call, sizeof(a->call));
        a->params = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "life", b->life, "call", need->call, "provider", need->provider,
                              "model", need->model, "price", need->price, "prices_version", need->prices_version,
                              "input_tokens", bounded(need->input_tokens), "output_tokens", bounded(need->output_tokens),
                              "cost_microusd", bounded(need->cost_microusd), "summary_tokens", bounded(need->summary_tokens),
                              "summary_cost", bounded(need->summary_cost_microusd), "summary", (int) need->summary);
        if (!a->params) {
                free(a);
                return -ENOMEM;
        }
        a->next = b->asks;
        a->prev = &b->asks;
        if (a->next)
                a->next->prev = &a->next;
        b->asks = a;
        b->n_asks++;
        ask_send(a);
        *ret = a;
        return 0;
}

/* ---- terms ---- */

static void budget_on_terms(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Budget *b = userdata;

        b->asking = false;
        if (error) {
                arm(b);
                return;
        }
        b->told = true;
        b->earlier_calls = number(params, "calls") == BUDGET_NO_CAP ? 0 : number(params, "calls");
        if (!b->known)
                take_terms(b, params);
}

static void ask_terms(Budget *b) {
        b->asking = ipc_client_call_async(b->client, RUN "GetBudget", json_object(), NULL, 0, false, ANSWER_USEC * 4, budget_on_terms, b) >= 0;
        if (!b->asking)
                arm(b);
}

bool budget_applies(const Budget *b) {
        return b && (!b->known || b->capped);
}

bool budget_is_capped(const Budget *b) {
        return b && b->known && b->capped;
}

uint64_t budget_summary_tokens(const Budget *b) {
        return b->summary_tokens;
}

uint64_t budget_earlier_calls(const Budget *b) {
        return b ? b->earlier_calls : 0;
}

/* ---- start and end ---- */

static int budget_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Budget *b = userdata;

        if (!b->told && !b->asking)
                ask_terms(b);
        notices_send(b);
        for (BudgetAsk *a = b->asks, *next; a; a = next) {
                next = a->next;
                if (!a->under_way)
                        ask_send(a);
        }
        return 0;
}

int budget_new(Budget **ret, sd_event *event, const char *socket_path) {
        _cleanup_(budget_freep) Budget *b = calloc(1, sizeof(*b));
        uint64_t life;
        int r;

        if (!b)
                return -ENOMEM;
        b->event = sd_event_ref(event);
        if (getrandom(&life, sizeof(life), 0) != sizeof(life))
                return -EIO;
        (void) snprintf(b->life, sizeof(b->life), "%016llx", (unsigned long long) life);
        r = ipc_client_new(&b->client, event, socket_path);
        if (r < 0)
                return r;
        ipc_client_set_parallel(b->client, PARALLEL);
        r = sd_event_add_time_relative(event, &b->timer, CLOCK_BOOTTIME, 0, 0, budget_on_timer, b);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(b);
        return 0;
}

Budget *budget_free(Budget *b) {
        if (!b)
                return NULL;
        b->client = ipc_client_free(b->client);
        while (b->asks)
                ask_drop(b->asks);
        while (b->notices)
                notice_drop(b->notices);
        b->timer = sd_event_source_disable_unref(b->timer);
        b->event = sd_event_unref(b->event);
        free(b);
        return NULL;
}
