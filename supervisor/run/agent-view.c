/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Lines are put together from whatever pieces the guest's output comes in. A line that is too long, or is
 * no JSON, is shown as it is, cut short: an agent's crash report must not be swallowed. A line that
 * no rule fits is not shown at all; the log has it as stream "agent-raw" all the same.
 *
 * The guest writes the lines, so each step is bounded: the line, what one line may yield, the depth to which
 * jansson goes.
 */

#include "run/agent-view.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "util/json.h"
#include "util/text.h"

enum {
        LINE_MAX_BYTES = 1024 * 1024,
        YIELD_MAX = 8 * 1024,   /* text from one line */
        VALUE_MAX = 2 * 1024,   /* text from one value in it */
        PLAIN_MAX = 512,        /* shown of a line that is no JSON */
};

typedef struct Text {
        char *data;
        size_t n, allocated;
} Text;

struct AgentView {
        const json_t *rules; /* borrowed */
        Text line, out;      /* owned */
        size_t mark;         /* where in out the current line's text begins */
        bool too_long;
};

AgentView *agent_view_free(AgentView *v) {
        if (!v)
                return NULL;
        free(v->line.data);
        free(v->out.data);
        free(v);
        return NULL;
}

int agent_view_new(AgentView **ret, const json_t *rules) {
        AgentView *v = calloc(1, sizeof(*v));

        if (!v)
                return -ENOMEM;
        v->rules = rules;
        *ret = v;
        return 0;
}

static int text_append(Text *t, const char *data, size_t size) {
        if (t->n + size + 1 > t->allocated) {
                size_t wanted = 2 * (t->n + size + 1);
                char *grown = realloc(t->data, wanted);

                if (!grown)
                        return -ENOMEM;
                t->data = grown;
                t->allocated = wanted;
        }
        memcpy(t->data + t->n, data, size);
        t->n += size;
        t->data[t->n] = '\0';
        return 0;
}

/* Adds at most max bytes of it, ending between two characters, and says if that was not all. */
static int view_add(AgentView *v, const char *s, size_t size, size_t max) {
        size_t room = v->out.n - v->mark < YIELD_MAX ? YIELD_MAX - (v->out.n - v->mark) : 0, n = size;
        int r;

        if (n > max)
                n = max;
        if (n > room)
                n = room;
        while (n > 0 && n < size && ((unsigned char) s[n] & 0xc0) == 0x80)
                n--;

        r = text_append(&v->out, s, n);
        if (r < 0 || n == size || room == 0)
                return r;
        return text_append(&v->out, " …", strlen(" …"));
}

/* RFC 6901, for object members alone; NULL if there is no such value. "" is the value itself. */
static const json_t *at(const json_t *value, const char *pointer) {
        char key[128];

        while (value && *pointer == '/') {
                size_t n = strcspn(++pointer, "/");

                if (n >= sizeof(key))
                        return NULL;
                memcpy(key, pointer, n);
                key[n] = '\0';
                value = json_object_get(value, key);
                pointer += n;
        }

        return value;
}

static bool fits(const json_t *value, const json_t *conditions) {
        const char *pointer;
        json_t *wanted;

        json_object_foreach((json_t *) conditions, pointer, wanted)
                if (!json_equal(at(value, pointer), wanted))
                        return false;
        return true;
}

static int add_value(AgentView *v, const json_t *value) {
        _cleanup_free_ char *dump = NULL;

        if (!value)
                return 0;
        if (json_is_string(value))
                return view_add(v, json_string_value(value), json_string_length(value), VALUE_MAX);

        dump = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        return dump ? view_add(v, dump, strlen(dump), VALUE_MAX) : -ENOMEM;
}

/* The format's text, with {/pointer} replaced by what is there. */
static int render(AgentView *v, const char *format, const json_t *value) {
        size_t before = v->out.n;
        int r;

        while (*format) {
                size_t n = strcspn(format, "{");
                const char *end;

                r = view_add(v, format, n, SIZE_MAX);
                if (r < 0)
                        return r;
                format += n;
                end = *format ? strchr(format, '}') : NULL;
                if (!end)
                        continue;

                {
                        _cleanup_free_ char *pointer = strndup(format + 1, (size_t) (end - format) - 1);

                        if (!pointer)
                                return -ENOMEM;
                        r = add_value(v, at(value, pointer));
                        if (r < 0)
                                return r;
                }
                format = end + 1;
        }

        if (v->out.n > before && v->out.data[v->out.n - 1] != '\n')
                return text_append(&v->out, "\n", 1);
        return 0;
}

static int apply_rule(AgentView *v, const json_t *rule, const json_t *document) {
        const char *each = json_string_value(json_object_get(rule, "each"));
        const char *format = json_string_value(json_object_get(rule, "format"));
        const json_t *where = json_object_get(rule, "where");
        const json_t *array, *element;
        size_t i;
        int r;

        if (!format || !fits(document, json_object_get(rule, "when")))
                return 0;
        if (!each)
                return render(v, format, document);

        array = at(document, each);
        json_array_foreach((json_t *) array, i, element) {
                if (where && !fits(element, where))
                        continue;
                r = render(v, format, element);
                if (r < 0)
                        return r;
        }

        return 0;
}

static int view_line(AgentView *v) {
        _cleanup_json_ json_t *document = NULL;
        const json_t *rule;
        size_t i;
        int r;

        v->mark = v->out.n;
        if (v->line.n == 0)
                return 0;

        r = v->too_long ? -EFBIG : json_parse(v->line.data, v->line.n, &document, NULL);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !json_is_object(document)) {
                /* a zero byte would end the text here and hide what comes behind it */
                for (char *zero = v->line.data; (zero = memchr(zero, 0, (size_t) (v->line.data + v->line.n - zero)));)
                        *zero = '?';
                r = view_add(v, v->line.data, v->line.n, PLAIN_MAX);
                return r < 0 ? r : text_append(&v->out, "\n", 1);
        }

        json_array_foreach((json_t *) v->rules, i, rule) {
                r = apply_rule(v, rule, document);
                if (r < 0)
                        return r;
        }

        return 0;
}

int agent_view_push(AgentView *v, const void *data, size_t size) {
        const char *p = data, *end = p + size;
        int r;

        while (p < end) {
                const char *newline = memchr(p, '\n', (size_t) (end - p));
                size_t n = (size_t) ((newline ?: end) - p);

                if (v->line.n + n > LINE_MAX_BYTES) {
                        v->too_long = true;
                        n = v->line.n < PLAIN_MAX + 1 ? PLAIN_MAX + 1 - v->line.n : 0;
                }
                r = text_append(&v->line, p, n);
                if (r < 0)
                        return r;
                if (!newline)
                        return 0;

                r = view_line(v);
                if (r < 0)
                        return r;
                v->line.n = 0;
                v->too_long = false;
                p = newline + 1;
        }

        return 0;
}

int agent_view_end(AgentView *v) {
        int r;

        r = view_line(v);
        v->line.n = 0;
        v->too_long = false;
        return r;
}

char *agent_view_take(AgentView *v) {
        char *text = v->out.n > 0 ? v->out.data : NULL;

        if (!text)
                return NULL;
        v->out = (Text) {};
        return text;
}
