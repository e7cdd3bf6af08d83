/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Two lanes, stdout and stderr of the step that runs now, each with a buffer of one window. One call to
 * anchord is under way at a time; while it is, the lanes fill up, so that a busy guest's output goes in few
 * large calls and a quiet guest's at once. What the guest may send is bounded by the credit that is still out, so a lane
 * never overflows unless the guest breaks the protocol.
 */

#include "run/run-output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "run/agent-view.h"
#include "run/run-text.h"
#include "util/log.h"

enum { CALL_MAX = 48 * 1024 };

typedef struct Lane {
        const char *name;    /* static: "stdout", "agent", … */
        size_t start, size;
        uint8_t data[CHANNEL_WINDOW];
} Lane;

struct RunOutput {
        RunCalls *calls; /* borrowed */
        const RunOutputHandler *handler;
        void *userdata;
        char step[65];
        AgentView *view;     /* owned; NULL: stdout goes out as it is */
        const char *view_name; /* static */
        char *shown;         /* owned; text of the view that is on its way, before any more of the lanes */
        size_t shown_at;
        GuestStream *stream; /* borrowed; NULL once it ended */
        Lane lanes[2];
        unsigned turn;
        size_t under_way;    /* bytes of the stream in the current call */
        bool busy, finishing, over;
        uint64_t limit, total;
        char text[CALL_MAX + 1];
};

static void output_next(RunOutput *o);

RunOutput *run_output_free(RunOutput *o) {
        if (!o)
                return NULL;
        agent_view_free(o->view);
        free(o->shown);
        free(o);
        return NULL;
}

int run_output_new(RunOutput **ret, RunCalls *calls, uint64_t limit, const RunOutputHandler *handler, void *userdata) {
        RunOutput *o = calloc(1, sizeof(*o));

        if (!o)
                return -ENOMEM;

        o->calls = calls;
        o->limit = limit;
        o->handler = handler;
        o->userdata = userdata;
        *ret = o;
        return 0;
}

int run_output_begin(RunOutput *o, const char *step, const char *stdout_name, const char *stderr_name,
                     const json_t *display) {
        int r;

        if (o->busy || o->lanes[0].size > 0 || o->lanes[1].size > 0)
                return -EBUSY;

        (void) snprintf(o->step, sizeof(o->step), "%s", step);
        o->view = agent_view_free(o->view);
        if (display) {
                r = agent_view_new(&o->view, display);
                if (r < 0)
                        return r;
        }
        o->view_name = stdout_name;
        o->lanes[0].name = display ? "agent-raw" : stdout_name;
        o->lanes[1].name = stderr_name;
        o->stream = NULL;
        o->finishing = false;
        return 0;
}

static void output_on_reply(RunCalls *calls, IpcClient *client, const char *error, json_t *params, void *userdata) {
        RunOutput *o = userdata;

        /* A refusal is anchord's decision about these bytes; they are gone all the same. */
        o->busy = false;
        if (o->stream)
                guest_stream_consumed(o->stream, o->under_way);
        o->under_way = 0;
        output_next(o);
}

static json_t *make_call(const char *stream, const char *step, const char *text, size_t size) {
        return json_pack("{s:s, s:s, s:s%}", "stream", stream, "step", step, "data", text, size);
}

/* Sends what the lane has, as far as it fits. False if there is nothing to send. */
static bool lane_send(RunOutput *o, Lane *l) {
        size_t used, n = 0;

        if (l->size == 0)
                return false;

        /* `start` moves only here, and the buffer is made straight again when more arrives. */
        used = run_text_encode(l->data + l->start, l->size, o->finishing, o->text, CALL_MAX, &n);
        if (used == 0)
                return false; /* the beginning of a character */

        l->start += used;
        l->size -= used;
        o->under_way = used;
        o->busy = true;
        if (run_calls_call(o->calls, "Output", make_call(l->name, o->step, o->text, n), -1, output_on_reply, o) < 0)
                output_on_reply(o->calls, NULL, "queue", NULL, o);
        return true;
}

/* The same for what the view made of bytes that have gone out already. */
static bool shown_send(RunOutput *o) {
        size_t used, n = 0;

        if (!o->shown && o->view) {
                o->shown = agent_view_take(o->view);
                o->shown_at = 0;
        }
        if (!o->shown)
                return false;

        used = run_text_encode((const uint8_t *) o->shown + o->shown_at, strlen(o->shown + o->shown_at), true,
                               o->text, CALL_MAX, &n);
        o->shown_at += used;
        if (o->shown[o->shown_at] == '\0') {
                free(o->shown);
                o->shown = NULL;
        }

        o->busy = true;
        if (run_calls_call(o->calls, "Output", make_call(o->view_name, o->step, o->text, n), -1, output_on_reply, o) < 0)
                output_on_reply(o->calls, NULL, "queue", NULL, o);
        return true;
}

static void output_next(RunOutput *o) {
        if (!o->busy)
                (void) shown_send(o);

        for (unsigned i = 0; i < ELEMENTSOF(o->lanes) && !o->busy; i++)
                if (lane_send(o, o->lanes + (o->turn + i) % ELEMENTSOF(o->lanes)))
                        o->turn++;

        if (o->finishing && !o->busy) {
                o->finishing = false;
                o->handler->drained(o, o->userdata);
        }
}

int run_output_push(RunOutput *o, GuestStream *stream, ChannelType type, const uint8_t *data, size_t size) {
        Lane *l = o->lanes + (type == CHANNEL_STDERR);
        int r;

        o->stream = stream;
        if (o->total + size > o->limit) {
                if (!o->over) {
                        o->over = true;
                        o->handler->limit(o, o->userdata);
                }
                guest_stream_consumed(stream, size);
                return 0;
        }

        if (size > sizeof(l->data) - l->size)
                return -EPROTO;
        if (size > sizeof(l->data) - l->start - l->size) {
                memmove(l->data, l->data + l->start, l->size);
                l->start = 0;
        }

        if (o->view && type != CHANNEL_STDERR) {
                r = agent_view_push(o->view, data, size);
                if (r < 0)
                        return r;
        }

        memcpy(l->data + l->start + l->size, data, size);
        l->size += size;
        o->total += size;
        output_next(o);
        return 0;
}

void run_output_finish(RunOutput *o) {
        if (o->view && agent_view_end(o->view) < 0)
                log_warning("the agent's last line is not shown: out of memory"); /* it is kept as it came */
        o->stream = NULL;
        o->finishing = true;
        output_next(o);
}

void run_output_forget(RunOutput *o, const GuestStream *stream) {
        if (o->stream == stream)
                o->stream = NULL;
}

int run_output_text(RunOutput *o, const char *stream, const char *step, const char *text) {
        size_t size = strlen(text), n = 0, used;
        int r;

        while (size > 0) {
                char buffer[CALL_MAX];

                used = run_text_encode((const uint8_t *) text, size, true, buffer, sizeof(buffer), &n);
                r = run_calls_call(o->calls, "Output", make_call(stream, step, buffer, n), -1, NULL, NULL);
                if (r < 0)
                        return r;
                text += used;
                size -= used;
        }

        return 0;
}

uint64_t run_output_total(const RunOutput *o) {
        return o->total;
}
