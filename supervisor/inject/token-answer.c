/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/token-answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "inject/mask.h"
#include "util/json-position.h"
#include "util/json.h"
#include "util/text.h"

#define DAY_USEC (24ULL * 3600 * 1000 * 1000)

enum { TOKEN_MIN = 8, TOKEN_MAX = 8192 };

static int refuse(char *reason, const char *text) {
        (void) snprintf(reason, TOKEN_ANSWER_REASON_SIZE, "%s", text);
        return -EBADMSG;
}

static void add_needle(MaskPair *pairs, size_t *n, const Secret *secret) {
        static const char instead[] = "(secret)";
        SecretView v;

        if (!secret)
                return;
        v = secret_view(secret);
        pairs[(*n)++] = (MaskPair) { v.bytes, v.size, instead, strlen(instead) };
}

/* As a JSON library may see it. Either may be NULL. */
static int parse_masked(const char *data, size_t size, const Secret *proof, const Secret *token, json_t **ret) {
        _cleanup_(masker_freep) Masker *mask = NULL;
        MaskPair pairs[2];
        Buffer text = {};
        size_t n = 0;
        int r;

        add_needle(pairs, &n, proof);
        add_needle(pairs, &n, token);
        if ((r = masker_new(&mask, pairs, n)) >= 0 && (r = masker_feed(mask, data, size, &text)) >= 0 && (r = masker_finish(mask, &text)) >= 0)
                r = json_parse((const char *) buffer_data(&text), buffer_size(&text), ret, NULL);
        buffer_done(&text);
        return r;
}

/* The token, out of its quotes: then nothing but dots is in them. */
static int take_token(char *data, size_t size, Secret **ret, char *reason) {
        size_t begin, end;
        int r;

        if (json_range(data, size, "/token", &begin, &end) <= 0 || end - begin < 2 || data[begin] != '"')
                return refuse(reason, "there is no token in the answer");
        begin++;
        end--;
        if (end - begin < TOKEN_MIN || end - begin > TOKEN_MAX)
                return refuse(reason, "the token in the answer is too short or too long");
        for (size_t i = begin; i < end; i++)
                if (data[i] < 0x21 || data[i] > 0x7e || data[i] == '"' || data[i] == '\\')
                        return refuse(reason, "the token in the answer has characters that no token has");

        r = secret_new(ret, data + begin, end - begin);
        explicit_bzero(data + begin, end - begin);
        memset(data + begin, '.', end - begin);
        return r;
}

/* RFC 3339 in UTC, without fractions. */
static int read_expiry(const char *text, uint64_t now_usec, uint64_t *ret, char *reason) {
        struct tm tm = {};
        const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm) : NULL;
        time_t t = end && !*end ? timegm(&tm) : -1;

        if (t < 0)
                return refuse(reason, "the answer does not say when the token expires");
        *ret = (uint64_t) t * 1000000;
        if (*ret <= now_usec || *ret > now_usec + DAY_USEC)
                return refuse(reason, "the token's expiry is past, or more than a day ahead: is this host's clock right?");
        return 0;
}

static int level(const char *text) {
        static const char *const levels[] = { "read", "write", "admin" };

        for (size_t i = 0; text && i < ELEMENTSOF(levels); i++)
                if (strcmp(levels[i], text) == 0)
                        return (int) i + 1;
        return text ? (int) ELEMENTSOF(levels) + 1 : 0;
}

/* What was granted beyond what was asked; every token may read metadata. */
static const char *find_wider(const json_t *answer, const json_t *asked, const char *repository) {
        json_t *granted = json_object_get(answer, "permissions"), *value;
        const json_t *repositories = json_object_get(answer, "repositories");
        const char *name, *selection = json_string_value(json_object_get(answer, "repository_selection"));

        json_object_foreach(granted, name, value) {
                int most = level(json_string_value(json_object_get(asked, name)));

                if (most == 0 && strcmp(name, "metadata") == 0)
                        most = 1;
                if (level(json_string_value(value) ?: "?") > most)
                        return name;
        }
        if (selection && strcmp(selection, "selected") != 0) /* "all": then there is no list of them */
                return "repository_selection";
        for (size_t i = 0; i < json_array_size(repositories); i++) {
                const char *full = json_string_value(json_object_get(json_array_get(repositories, i), "full_name"));

                if (!full || strcasecmp(full, repository) != 0)
                        return full ?: "repositories";
        }
        return NULL;
}

int token_answer_read(char *data, size_t size, const Secret *proof, const json_t *permissions, const char *repository, uint64_t now_usec, Secret **ret, uint64_t *ret_expires_usec,
                      char ret_reason[static TOKEN_ANSWER_REASON_SIZE]) {
        _cleanup_(secret_freep) Secret *token = NULL;
        _cleanup_json_ json_t *answer = NULL;
        _cleanup_free_ char *safe = NULL;
        const char *wider;
        int r;

        r = take_token(data, size, &token, ret_reason);
        if (r < 0)
                return r;
        if (parse_masked(data, size, proof, token, &answer) < 0 || !json_is_object(answer))
                r = refuse(ret_reason, "the answer is no JSON object");
        else
                r = read_expiry(json_string_value(json_object_get(answer, "expires_at")), now_usec, ret_expires_usec, ret_reason);
        if (r < 0) {
                *ret_expires_usec = now_usec + DAY_USEC;
                *ret = TAKE_PTR(token);
                return TOKEN_ANSWER_E_UNCLEAR;
        }
        wider = find_wider(answer, permissions, repository);
        if (wider) {
                safe = text_escape(wider, strnlen(wider, 100), false);
                (void) snprintf(ret_reason, TOKEN_ANSWER_REASON_SIZE, "%s", safe ?: "");
        }
        *ret = TAKE_PTR(token);
        return wider ? TOKEN_ANSWER_E_WIDER : 0;
}

uint64_t token_answer_read_installation(const char *data, size_t size) {
        _cleanup_json_ json_t *answer = NULL;
        const json_t *id;

        if (json_parse(data, size, &answer, NULL) < 0)
                return 0;
        id = json_object_get(answer, "id");
        return json_integer_value(id) > 0 ? (uint64_t) json_integer_value(id) : 0;
}

void token_answer_read_message(const char *data, size_t size, const Secret *proof, char ret[static TOKEN_ANSWER_REASON_SIZE]) {
        _cleanup_json_ json_t *answer = NULL;
        const char *text = NULL;

        if (parse_masked(data, size, proof, NULL, &answer) >= 0)
                text = json_string_value(json_object_get(answer, "message"));
        text_fit(text ?: "", ret, TOKEN_ANSWER_REASON_SIZE);
}
