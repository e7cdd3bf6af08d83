/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A JSON text is first read by jansson, which refuses what is no JSON and what has a key twice: two readers of that could disagree
 * about which of them is the place. The walk to the place can then trust the text's structure. jansson never sees a value: it
 * is put in afterwards, with escapes for the two characters of visible ASCII that need one.
 */

#include "inject/body-place.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "inject/decode.h"
#include "inject/tripwire-api.h"
#include "util/json.h"

/* ---- JSON ---- */

static size_t skip_space(const char *p, size_t size, size_t i) {
        while (i < size && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r'))
                i++;
        return i;
}

/* Behind the string that begins at i. */
static size_t skip_string(const char *p, size_t size, size_t i) {
        for (i++; i < size && p[i] != '"'; i++)
                if (p[i] == '\\')
                        i++;
        return i < size ? i + 1 : size;
}

/* Behind the value that begins at i. */
static size_t skip_value(const char *p, size_t size, size_t i) {
        size_t depth = 0;

        while (i < size) {
                char c = p[i];

                if (c == '"') {
                        i = skip_string(p, size, i);
                        if (depth == 0)
                                return i;
                        continue;
                }
                if (depth == 0 && (c == ',' || c == '}' || c == ']'))
                        return i;
                if (c == '{' || c == '[')
                        depth++;
                if ((c == '}' || c == ']') && --depth == 0)
                        return i + 1;
                i++;
        }
        return i;
}

static int decode_string(const char *p, size_t begin, size_t end, json_t **ret) {
        return json_parse(p + begin, end - begin, ret, NULL);
}

/* One step of a pointer (RFC 6901), decoded, into ret (of 257 bytes). Behind it. */
static const char *next_token(const char *pointer, char *ret) {
        size_t n = 0;

        for (pointer++; *pointer && *pointer != '/' && n < 256; pointer++) {
                if (pointer[0] == '~' && (pointer[1] == '0' || pointer[1] == '1'))
                        ret[n++] = *++pointer == '0' ? '~' : '/';
                else
                        ret[n++] = *pointer;
        }
        ret[n] = '\0';
        return pointer;
}

/* Where the member of that name begins, in the object that begins at i; 0: there is none. -ENOMEM. */
static ssize_t find_member(const char *p, size_t size, size_t i, const char *name) {
        for (i = skip_space(p, size, i + 1); i < size && p[i] == '"';) {
                size_t end = skip_string(p, size, i);
                _cleanup_json_ json_t *key = NULL;
                int r;

                r = decode_string(p, i, end, &key);
                if (r < 0)
                        return r;
                i = skip_space(p, size, skip_space(p, size, end) + 1); /* the colon */
                if (strcmp(json_string_value(key), name) == 0)
                        return (ssize_t) i;
                i = skip_space(p, size, skip_value(p, size, i));
                if (i < size && p[i] == ',')
                        i = skip_space(p, size, i + 1);
        }
        return 0;
}

static ssize_t find_element(const char *p, size_t size, size_t i, const char *name) {
        size_t index = 0;
        char *end;

        if (*name < '0' || *name > '9' || (*name == '0' && name[1]))
                return 0;
        index = strtoul(name, &end, 10);
        if (*end)
                return 0;
        for (i = skip_space(p, size, i + 1); i < size && p[i] != ']'; index--) {
                if (index == 0)
                        return (ssize_t) i;
                i = skip_space(p, size, skip_value(p, size, i));
                if (i < size && p[i] == ',')
                        i = skip_space(p, size, i + 1);
        }
        return 0;
}

/* Where the value at a pointer begins; 0: there is none. */
static ssize_t find_pointer(const char *p, size_t size, const char *pointer) {
        ssize_t i = (ssize_t) skip_space(p, size, 0);
        char token[257];

        while (*pointer) {
                pointer = next_token(pointer, token);
                if ((size_t) i >= size)
                        return 0;
                if (p[i] == '{')
                        i = find_member(p, size, (size_t) i, token);
                else
                        i = p[i] == '[' ? find_element(p, size, (size_t) i, token) : 0;
                if (i <= 0)
                        return i;
        }
        return i;
}

/* Is there, on the way to that place, a key that some readers take for one of the pointer's, since they know no case? */
static bool is_json_disguised(const json_t *j, const char *pointer) {
        char token[257];

        while (j && *pointer) {
                pointer = next_token(pointer, token);
                if (json_has_lookalike(j, token))
                        return true;
                j = json_is_object(j) ? json_object_get(j, token) : json_array_get(j, strtoul(token, NULL, 10));
        }
        return false;
}

/* ---- what was found ---- */

typedef struct Found {
        size_t begin, end; /* as in BodyRewrite; begin 0: nothing, or nothing in it */
        bool is_text;      /* else a JSON value that is no string */
        char *text;        /* owned; decoded */
        size_t n_text;
} Found;

static void found_done(Found *f) {
        free(f->text);
}

static int find_json(const char *p, size_t size, const char *pointer, Found *ret) {
        ssize_t i = find_pointer(p, size, pointer);
        _cleanup_json_ json_t *value = NULL;
        size_t end;
        int r;

        if (i <= 0)
                return (int) i;
        end = skip_value(p, size, (size_t) i);
        ret->is_text = p[i] == '"';
        if (end - (size_t) i == 4 && memcmp(p + i, "null", 4) == 0)
                return 0;
        if (!ret->is_text) {
                ret->begin = (size_t) i;
                ret->end = end;
                return 0;
        }
        r = decode_string(p, (size_t) i, end, &value);
        if (r < 0)
                return r;
        ret->begin = (size_t) i + 1;
        ret->end = end - 1;
        ret->n_text = json_string_length(value);
        ret->text = strndup(json_string_value(value), ret->n_text);
        return ret->text ? 0 : -ENOMEM;
}

/* -EBADMSG: more than one of that name. */
static int find_form(const char *p, size_t size, const char *name, Found *ret) {
        for (size_t i = 0; i < size;) {
                const char *amp = memchr(p + i, '&', size - i), *equals;
                size_t n = amp ? (size_t) (amp - p) - i : size - i, n_key, n_decoded;
                _cleanup_free_ char *decoded = malloc(n + 1);

                if (!decoded)
                        return -ENOMEM;
                equals = memchr(p + i, '=', n);
                n_key = equals ? (size_t) (equals - p) - i : n;
                n_decoded = decode_percent(p + i, n_key, true, decoded);
                if (n_decoded == strlen(name) && memcmp(decoded, name, n_decoded) == 0) {
                        if (ret->text)
                                return -EBADMSG;
                        ret->begin = i + (equals ? n_key + 1 : n_key);
                        ret->end = i + n;
                        ret->is_text = true;
                        ret->n_text = decode_percent(p + ret->begin, ret->end - ret->begin, true, decoded);
                        decoded[ret->n_text] = '\0';
                        ret->text = TAKE_PTR(decoded);
                }
                i += n + 1;
        }
        return 0;
}

/* The same of a form's fields. */
static bool is_form_disguised(const char *p, size_t size, const char *name) {
        for (size_t i = 0; i < size;) {
                const char *amp = memchr(p + i, '&', size - i), *equals;
                size_t n = amp ? (size_t) (amp - p) - i : size - i, n_key, n_decoded;
                _cleanup_free_ char *decoded = malloc(n + 1);

                if (!decoded)
                        return true;
                equals = memchr(p + i, '=', n);
                n_key = equals ? (size_t) (equals - p) - i : n;
                n_decoded = decode_percent(p + i, n_key, true, decoded);
                decoded[n_decoded] = '\0';
                if (strcasecmp(decoded, name) == 0 && strcmp(decoded, name) != 0)
                        return true;
                i += n + 1;
        }
        return false;
}

/* ---- the verdict ---- */

static int settle(SubstitutePlan *plan, SubstituteVerdict verdict, const InjectCredential *c, const char *where) {
        *plan = (SubstitutePlan) { .verdict = verdict, .credential = c, .where = where };
        return BODY_E_REFUSED;
}

static int add_span(SubstitutePlan *plan, const BodyPlace *b, const Found *f, BodyRewrite *ret) {
        size_t at = ret->n_spans;

        if (plan->n_items == SUBSTITUTE_MAX)
                return settle(plan, SUBSTITUTE_MISUSE, b->credential, "body");
        for (size_t i = 0; i < ret->n_spans; i++)
                if (ret->spans[i].begin < f->end && f->begin < ret->spans[i].end)
                        return settle(plan, SUBSTITUTE_MISUSE, b->credential, "body");

        for (; at > 0 && ret->spans[at - 1].begin > f->begin; at--)
                ret->spans[at] = ret->spans[at - 1];
        ret->spans[at].begin = f->begin;
        ret->spans[at].end = f->end;
        ret->spans[at].kind = b->place->kind;
        ret->spans[at].credential = b->credential;
        ret->n_spans++;

        plan->items[plan->n_items++] = (Substitution) { .place = b->place, .credential = b->credential };
        plan->verdict = SUBSTITUTE_REPLACE;
        plan->credential = b->credential;
        plan->where = "body";
        return 0;
}

static bool is_sentinel(const BodyPlace *b, const Found *f) {
        const char *sentinel = b->credential->source->sentinel;

        return f->is_text && f->n_text == strlen(sentinel) && memcmp(f->text, sentinel, f->n_text) == 0;
}

/* First what is the run's own, then, once it is known that no sentinel is anywhere else, what is not. */
static int judge_found(SubstitutePlan *plan, const BodyPlace *b, const Found *f, bool foreign, BodyRewrite *ret) {
        const InjectCredential *c = b->credential;

        if (f->begin == 0 || (f->is_text && f->n_text == 0))
                return 0;
        if (is_sentinel(b, f))
                return foreign ? 0 : add_span(plan, b, f, ret);
        if (!foreign || c->on_foreign == FOREIGN_PASS)
                return 0;
        if (c->on_foreign == FOREIGN_REPLACE && f->is_text)
                return add_span(plan, b, f, ret);
        return settle(plan, SUBSTITUTE_FOREIGN, NULL, "body");
}

/* The media type alone, without parameters (RFC 9110, 8.3). */
static bool has_type(const HttpHead *head, CredentialPlaceKind kind) {
        const char *type = "";
        size_t n;

        if (http_head_find(head, "content-type", &type) != 1)
                return false;
        n = strcspn(type, "; \t");
        if (kind == PLACE_FORM)
                return n == strlen("application/x-www-form-urlencoded") && strncasecmp(type, "application/x-www-form-urlencoded", n) == 0;
        return (n == strlen("application/json") && strncasecmp(type, "application/json", n) == 0) ||
               (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

static int find_place(const BodyPlace *b, const char *data, size_t size, Found *ret) {
        return b->place->kind == PLACE_JSON ? find_json(data, size, b->place->name, ret) : find_form(data, size, b->place->name, ret);
}

static bool is_disguised(const BodyPlace *b, const json_t *document, const char *data, size_t size) {
        return b->place->kind == PLACE_JSON ? is_json_disguised(document, b->place->name) : is_form_disguised(data, size, b->place->name);
}

/* A sentinel of a run's that is in the body, but not as one of the values that are replaced. */
static const InjectCredential *find_misuse(const InjectCredential *credentials, size_t n, const BodyRewrite *b, const char *data, size_t size) {
        _cleanup_free_ char *rest = malloc(size + 1);

        if (!rest)
                return &credentials[0];
        memcpy(rest, data, size);
        for (size_t i = 0; i < b->n_spans; i++)
                memset(rest + b->spans[i].begin, ' ', b->spans[i].end - b->spans[i].begin);
        for (size_t k = 0; k < n; k++)
                if (tripwire_text_has(rest, size, credentials[k].source->sentinel))
                        return &credentials[k];
        return NULL;
}

/* Fields that say what the body's bytes are (RFC 1864, 3230, 9530, and Amazon's). */
static const char *find_digest(const HttpHead *head) {
        static const char *const names[] = { "content-md5", "digest", "content-digest", "repr-digest", "x-amz-content-sha256" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (http_head_find(head, names[i], NULL) > 0)
                        return names[i];
        return NULL;
}

static int judge_places(const HttpHead *head, SubstitutePlan *plan, const char *data, size_t size, bool foreign, BodyRewrite *ret) {
        _cleanup_json_ json_t *document = NULL;
        size_t n_fit = 0;
        int r;

        for (size_t i = 0; i < plan->n_body; i++) {
                const BodyPlace b = plan->body[i];
                _cleanup_(found_done) Found f = {};

                if (!has_type(head, b.place->kind))
                        continue;
                n_fit++;
                if (b.place->kind == PLACE_JSON && !document && json_parse(data, size, &document, NULL) < 0)
                        return BODY_E_MALFORMED;
                r = find_place(&b, data, size, &f);
                if (r < 0)
                        return r == -EBADMSG ? BODY_E_MALFORMED : r;
                r = judge_found(plan, &b, &f, foreign, ret);
                if (r != 0)
                        return r;
                if (foreign && b.credential->on_foreign != FOREIGN_PASS && is_disguised(&b, document, data, size))
                        return settle(plan, SUBSTITUTE_FOREIGN, NULL, "body");
        }
        return n_fit > 0 ? 0 : BODY_E_ENCODED;
}

bool body_place_is_gzip(const char *coding) {
        return strcasecmp(coding, "gzip") == 0 || strcasecmp(coding, "x-gzip") == 0;
}

/* A coding that whoever held the body has taken off, or none. */
static bool is_readable(const HttpHead *head) {
        const char *coding;
        size_t n = http_head_find(head, "content-encoding", &coding);

        return n == 0 || (n == 1 && (strcasecmp(coding, "identity") == 0 || body_place_is_gzip(coding)));
}

int body_place_judge(const InjectCredential *credentials, size_t n_credentials, const HttpHead *head, SubstitutePlan *plan,
                     const void *data, size_t size, BodyRewrite *ret) {
        const InjectCredential *misused;
        const char *digest;
        int r;

        *ret = (BodyRewrite) {};
        if (size == 0)
                return 0;
        if (!is_readable(head))
                return BODY_E_ENCODED;

        r = judge_places(head, plan, data, size, false, ret);
        if (r != 0)
                return r;
        misused = find_misuse(credentials, n_credentials, ret, data, size);
        if (misused)
                return settle(plan, SUBSTITUTE_MISUSE, misused, "body");
        r = judge_places(head, plan, data, size, true, ret);
        if (r != 0)
                return r;
        digest = ret->n_spans > 0 ? find_digest(head) : NULL;
        if (digest)
                return settle(plan, SUBSTITUTE_CANNOT, ret->spans[0].credential, digest);
        substitute_check(plan, head);
        return plan->verdict == SUBSTITUTE_PLAIN || plan->verdict == SUBSTITUTE_REPLACE ? 0 : BODY_E_REFUSED;
}

/* ---- writing ---- */

static int write_json(Buffer *out, const void *data, size_t size) {
        const char *value = data;
        int r = 0;

        for (size_t i = 0; i < size && r >= 0; i++) {
                if (value[i] == '"' || value[i] == '\\')
                        r = buffer_append(out, "\\", 1);
                if (r >= 0)
                        r = buffer_append(out, value + i, 1);
        }
        return r;
}

int body_place_write(const BodyRewrite *b, const void *data, size_t size, Buffer *out) {
        const char *p = data;
        size_t done = 0;
        int r;

        for (size_t i = 0; i < b->n_spans; i++) {
                SecretView v = secret_view(b->spans[i].credential->source->secret);

                r = buffer_append(out, p + done, b->spans[i].begin - done);
                if (r >= 0)
                        r = b->spans[i].kind == PLACE_JSON ? write_json(out, v.bytes, v.size) : encode_percent(out, v.bytes, v.size);
                if (r < 0)
                        return r;
                done = b->spans[i].end;
        }
        return buffer_append(out, p + done, size - done);
}
