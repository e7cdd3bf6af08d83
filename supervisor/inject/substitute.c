/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A sentinel is worth nothing, so that looking for it outside of its places is no boundary but a trip wire: it
 * finds the agent, or what took it over, trying to carry its credential elsewhere. It is looked for in the target, in names and values of
 * fields, and in Basic authorization decoded, in each form that tripwire-api.h knows. Bodies are searched by request-body.c, with a masker.
 *
 * A foreign credential is refused, unless its rule says otherwise, because with a key of its own an agent could make an allowed host
 * carry data to somebody else's account.
 */

#include "inject/substitute.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "egress/agreement-api.h"
#include "inject/decode.h"
#include "inject/foreign-name.h"
#include "inject/tripwire-api.h"
#include "policy/policy-git.h"
#include "util/text.h"

/* ---- looking for sentinels ---- */

static bool text_has(const char *text, const char *sentinel) {
        return tripwire_text_has(text, strlen(text), sentinel);
}

/* ---- places ---- */

static void settle(SubstitutePlan *plan, SubstituteVerdict verdict, const InjectCredential *c, const char *where) {
        *plan = (SubstitutePlan) { .verdict = verdict, .credential = c, .where = where };
}

static const Substitution *find_item(const SubstitutePlan *plan, size_t field) {
        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place->kind <= PLACE_BASIC && plan->items[i].field == field)
                        return &plan->items[i];
        return NULL;
}

/* False, with a final verdict: there is one too many. */
static bool add_item(SubstitutePlan *plan, const Substitution *item, const char *where) {
        if (plan->n_items == SUBSTITUTE_MAX) {
                settle(plan, SUBSTITUTE_MISUSE, item->credential, where);
                return false;
        }
        plan->verdict = SUBSTITUTE_REPLACE;
        plan->credential = item->credential;
        plan->where = where;
        plan->items[plan->n_items++] = *item;
        return true;
}

/* Which halves of a Basic authorization are what is looked for (NULL: anything), among those of the place? */
static bool match_basic(Substitution *s, const char *value, const char *sentinel) {
        _cleanup_free_ char *user = NULL;
        const char *password;

        if (decode_basic(value, &user, &password) < 0)
                return false;
        if (!sentinel) { /* what a token stands in, if it may stand in both */
                s->password = s->place->password;
                s->user = !s->password;
                return true;
        }
        s->user = s->place->user && strcmp(user, sentinel) == 0;
        s->password = s->place->password && strcmp(password, sentinel) == 0;
        return s->user || s->password;
}

/* Is all of the place in this field the sentinel (NULL: anything)? */
static bool match_field(Substitution *s, const HttpField *field, const char *sentinel) {
        const char *value = field->value;

        if (s->place->kind > PLACE_BASIC || strcasecmp(field->name, s->place->name) != 0)
                return false;
        if (s->place->kind == PLACE_BASIC)
                return match_basic(s, value, sentinel);
        s->begin = 0;
        if (s->place->kind == PLACE_BEARER) {
                if (strncasecmp(value, "bearer ", 7) != 0)
                        return false;
                s->begin = 7 + strspn(value + 7, " ");
        }
        s->end = strlen(value);
        return s->end > s->begin && (!sentinel || strcmp(value + s->begin, sentinel) == 0);
}

static bool plan_fields(const InjectCredential *c, const CredentialPlace *place, const HttpHead *head, SubstitutePlan *plan) {
        for (size_t i = 0; i < head->n_fields; i++) {
                Substitution s = { .place = place, .field = i, .credential = c };

                if (find_item(plan, i) || !match_field(&s, &head->fields[i], c->source->sentinel))
                        continue;
                if (http_head_find(head, head->fields[i].name, NULL) > 1) {
                        settle(plan, SUBSTITUTE_MISUSE, c, head->fields[i].name);
                        return false;
                }
                if (!add_item(plan, &s, head->fields[i].name))
                        return false;
        }
        return true;
}

static size_t query_of(const char *target) {
        return strcspn(target, "?");
}

/* The value of the parameter of that name, decoded (the caller's); the text from *ret_begin to *ret_end. The number of such parameters. */
static size_t find_parameter(const char *target, const char *name, size_t *ret_begin, size_t *ret_end, char **ret) {
        size_t n_found = 0, at = query_of(target);

        for (;;) {
                _cleanup_(decode_parameter_done) DecodedParameter p = {};
                char *decoded;

                if (!decode_next_parameter(target, &at, &p))
                        return n_found;
                if (p.name && (p.n_name != strlen(name) || memcmp(p.name, name, p.n_name) != 0))
                        continue;
                decoded = p.name ? malloc(p.end - p.begin + 1) : NULL;
                if (!decoded)
                        return SIZE_MAX; /* more than one: not to be handled */
                decoded[decode_percent(target + p.begin, p.end - p.begin, true, decoded)] = '\0';
                *ret_begin = p.begin;
                *ret_end = p.end;
                free(*ret);
                *ret = decoded;
                n_found++;
        }
}

/* More than one of that name: the sentinel in any of them is misuse, and found as such later. */
static bool plan_query(const InjectCredential *c, const CredentialPlace *place, const HttpHead *head, SubstitutePlan *plan) {
        Substitution s = { .place = place, .credential = c };
        _cleanup_free_ char *value = NULL;

        if (find_parameter(head->target, place->name, &s.begin, &s.end, &value) != 1 || strcmp(value, c->source->sentinel) != 0)
                return true;
        return add_item(plan, &s, "target");
}

/* A request of git's without an authorization gets one. */
static bool plan_git(const InjectCredential *c, const CredentialPlace *place, const HttpHead *head, SubstitutePlan *plan) {
        Substitution s = { .place = place, .credential = c };
        GitService service = git_service_of(head->method, head->target, NULL, NULL);

        if (service == GIT_NONE || service == GIT_DUMB || http_head_find(head, "authorization", NULL) > 0 ||
            !inject_credential_covers_request(c, head->method, head->target))
                return true;
        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place->kind == PLACE_GIT)
                        return true;
        return add_item(plan, &s, "authorization");
}

/* Where this credential is in the head, and whether its body may have places. False: the verdict is final. */
static bool plan_places(const InjectCredential *c, const HttpHead *head, SubstitutePlan *plan) {
        for (size_t i = 0; i < c->n_places; i++) {
                const CredentialPlace *place = &c->places[i];

                if (place->kind <= PLACE_BASIC) {
                        if (!plan_fields(c, place, head, plan))
                                return false;
                } else if (place->kind == PLACE_GIT) {
                        if (!plan_git(c, place, head, plan))
                                return false;
                } else if (!credential_place_applies(place, head->method, head->target))
                        continue;
                else if (place->kind == PLACE_QUERY) {
                        if (!plan_query(c, place, head, plan))
                                return false;
                } else if (head->framing != HTTP_FRAMING_NONE && plan->n_body < SUBSTITUTE_MAX)
                        plan->body[plan->n_body++] = (BodyPlace) { .place = place, .credential = c };
        }
        return true;
}

/* ---- everywhere else ---- */

/* The target without the values that are replaced. */
static bool target_has(const HttpHead *head, const SubstitutePlan *plan, const char *sentinel) {
        _cleanup_free_ char *rest = strdup(head->target);

        if (!rest)
                return true;
        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place->kind == PLACE_QUERY)
                        memset(rest + plan->items[i].begin, '&', plan->items[i].end - plan->items[i].begin);
        return text_has(rest, sentinel);
}

static bool basic_has(const char *value, const Substitution *item, const char *sentinel) {
        _cleanup_free_ char *user = NULL;
        const char *password;

        if (decode_basic(value, &user, &password) < 0)
                return false;
        return (!(item && item->user) && text_has(user, sentinel)) || (!(item && item->password) && text_has(password, sentinel));
}

static bool field_has(const HttpField *field, const Substitution *item, const char *sentinel) {
        if (text_has(field->name, sentinel) || basic_has(field->value, item, sentinel))
                return true;
        return !item && text_has(field->value, sentinel);
}

/* Does this field sign what the request is, so that nothing of it can be replaced? */
static bool is_signature(const HttpField *field) {
        if (agreement_same_field(field->name, "authorization"))
                return strncasecmp(field->value, "aws4-", 5) == 0 || strncasecmp(field->value, "signature ", 10) == 0 ||
                       strncasecmp(field->value, "hmac ", 5) == 0;
        return agreement_same_field(field->name, "signature") || agreement_same_field(field->name, "signature-input");
}

static bool judge_misuse(const InjectCredential *c, bool covered, const HttpHead *head, SubstitutePlan *plan) {
        const char *sentinel = c->source->sentinel;

        if (target_has(head, plan, sentinel)) {
                settle(plan, SUBSTITUTE_MISUSE, c, "target");
                return false;
        }
        for (size_t i = 0; i < head->n_fields; i++)
                if (field_has(&head->fields[i], find_item(plan, i), sentinel)) {
                        settle(plan, covered && is_signature(&head->fields[i]) ? SUBSTITUTE_CANNOT : SUBSTITUTE_MISUSE, c, head->fields[i].name);
                        return false;
                }
        return true;
}

static bool is_auth_header(const InjectCredential *c, const char *name) {
        if (foreign_is_field(name))
                return true;
        for (size_t i = 0; i < c->n_places; i++)
                if (c->places[i].kind <= PLACE_BASIC && agreement_same_field(name, c->places[i].name))
                        return true;
        return false;
}

const InjectCredential *substitute_find_sentinel(const InjectCredential *credentials, size_t n_credentials, const HttpField *field) {
        for (size_t i = 0; i < n_credentials; i++)
                if (field_has(field, NULL, credentials[i].source->sentinel))
                        return &credentials[i];
        return NULL;
}

/* The run's own value in place of another one, if that is in a place. */
static bool replace_foreign(const InjectCredential *c, const HttpHead *head, size_t field, SubstitutePlan *plan) {
        for (size_t i = 0; i < c->n_places; i++) {
                Substitution s = { .place = &c->places[i], .field = field, .credential = c };

                if (match_field(&s, &head->fields[field], NULL) && http_head_find(head, head->fields[field].name, NULL) == 1)
                        return add_item(plan, &s, head->fields[field].name);
        }
        settle(plan, SUBSTITUTE_FOREIGN, NULL, head->fields[field].name);
        return false;
}

/* The same of a parameter of the target; it has no sentinel in it. */
static bool judge_foreign_query(const InjectCredential *c, const CredentialPlace *place, const HttpHead *head, SubstitutePlan *plan) {
        Substitution s = { .place = place, .credential = c };
        _cleanup_free_ char *value = NULL;
        size_t n;

        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place == place)
                        return true;
        n = find_parameter(head->target, place->name, &s.begin, &s.end, &value);
        if (n == 0 || (n == 1 && !*value))
                return true;
        if (n == 1 && c->on_foreign == FOREIGN_REPLACE)
                return add_item(plan, &s, "target");
        settle(plan, SUBSTITUTE_FOREIGN, NULL, "target");
        return false;
}

/* Does a place for this request have that name to a reader that knows no case? */
static bool resembles_place(const InjectCredential *c, const HttpHead *head, const char *name) {
        for (size_t i = 0; i < c->n_places; i++)
                if (c->places[i].kind == PLACE_QUERY && credential_place_applies(&c->places[i], head->method, head->target) && strcasecmp(c->places[i].name, name) == 0)
                        return true;
        return false;
}

static bool is_replaced(const SubstitutePlan *plan, const DecodedParameter *p) {
        for (size_t i = 0; i < plan->n_items; i++)
                if (plan->items[i].place->kind == PLACE_QUERY && plan->items[i].begin == p->begin)
                        return true;
        return false;
}

/* Parameters that hold a credential somewhere, or that some reader takes for a place: after the places themselves were judged. */
static bool judge_foreign_parameters(const InjectCredential *c, const HttpHead *head, SubstitutePlan *plan) {
        size_t at = query_of(head->target);

        for (;;) {
                _cleanup_(decode_parameter_done) DecodedParameter p = {};

                if (!decode_next_parameter(head->target, &at, &p))
                        return true;
                if (p.begin == p.end || is_replaced(plan, &p) || (p.name && !foreign_is_parameter(c, p.name) && !resembles_place(c, head, p.name)))
                        continue;
                settle(plan, SUBSTITUTE_FOREIGN, NULL, "target");
                return false;
        }
}

/* No field of authentication may stand beside the run's own, unless its rule says so. */
static bool judge_foreign(const InjectCredential *c, const HttpHead *head, SubstitutePlan *plan) {
        for (size_t i = 0; i < head->n_fields; i++) {
                if (find_item(plan, i) || !is_auth_header(c, head->fields[i].name) || !*head->fields[i].value || c->on_foreign == FOREIGN_PASS)
                        continue;
                if (c->on_foreign == FOREIGN_REPLACE) {
                        if (!replace_foreign(c, head, i, plan))
                                return false;
                        continue;
                }
                settle(plan, SUBSTITUTE_FOREIGN, NULL, head->fields[i].name);
                return false;
        }
        for (size_t i = 0; i < c->n_places && c->on_foreign != FOREIGN_PASS; i++)
                if (c->places[i].kind == PLACE_QUERY && credential_place_applies(&c->places[i], head->method, head->target) &&
                    !judge_foreign_query(c, &c->places[i], head, plan))
                        return false;
        return c->on_foreign == FOREIGN_PASS || judge_foreign_parameters(c, head, plan);
}

bool substitute_is_auth_field(const InjectCredential *credentials, size_t n_credentials, const char *name) {
        if (foreign_is_field(name))
                return true;
        for (size_t i = 0; i < n_credentials; i++)
                if (is_auth_header(&credentials[i], name))
                        return true;
        return false;
}

/* ---- the verdict ---- */

void substitute_check(SubstitutePlan *plan, const HttpHead *head) {
        for (size_t i = 0; i < plan->n_items; i++) {
                const Substitution *s = &plan->items[i];
                const InjectCredential *c = s->credential;
                const char *where = s->place->kind <= PLACE_BASIC ? head->fields[s->field].name : s->place->kind == PLACE_QUERY ? "target" : s->place->kind == PLACE_GIT ? "authorization" : "body";

                if ((!c->source->secret && !c->source->minted) || c->revoked) {
                        settle(plan, SUBSTITUTE_REVOKED, c, where);
                        return;
                }
                if (!inject_credential_covers_request(c, head->method, head->target)) {
                        settle(plan, SUBSTITUTE_NOT_HERE, c, where);
                        return;
                }
        }
        for (size_t i = 0; plan->n_items > 0 && i < head->n_fields; i++)
                if (is_signature(&head->fields[i])) {
                        settle(plan, SUBSTITUTE_CANNOT, plan->items[0].credential, head->fields[i].name);
                        return;
                }
}

void substitute_plan(const InjectCredential *credentials, size_t n_credentials, const char *host, uint16_t port,
                     const HttpHead *head, SubstitutePlan *ret) {
        bool covered[RUN_CREDENTIALS_MAX];

        *ret = (SubstitutePlan) { .verdict = SUBSTITUTE_PLAIN };
        for (size_t k = 0; k < n_credentials; k++) {
                covered[k] = inject_credential_covers_host(&credentials[k], host, port);
                if (covered[k] && !plan_places(&credentials[k], head, ret))
                        return;
        }

        /* misuse first: it is the strongest finding, whatever else is wrong */
        for (size_t k = 0; k < n_credentials; k++)
                if (!judge_misuse(&credentials[k], covered[k], head, ret))
                        return;
        for (size_t k = 0; k < n_credentials; k++)
                if (covered[k] && !judge_foreign(&credentials[k], head, ret))
                        return;
        substitute_check(ret, head);
}

static int write_line(const char *name, const void *value, size_t size, bool secret, void *userdata) {
        Buffer *out = userdata;
        int r;

        if ((r = buffer_append_text(out, name)) < 0 || (r = buffer_append_text(out, ": ")) < 0 || (r = buffer_append(out, value, size)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

static int write_field(Buffer *out, const char *name, const char *value) {
        return write_line(name, value, strlen(value), false, out);
}

/* Of these a body means nothing (RFC 9110, 9.3.1, 9.3.2 and 9.3.5), and an origin that does not read it would take it for the next request. */
static bool body_may_be_a_request(const HttpHead *head) {
        bool has_body = head->framing == HTTP_FRAMING_CHUNKED || head->framing == HTTP_FRAMING_LENGTH;

        return has_body && (strcmp(head->method, "GET") == 0 || strcmp(head->method, "HEAD") == 0 || strcmp(head->method, "DELETE") == 0);
}

/* So there is no next one on that connection. */
static int write_end(const HttpHead *head, Buffer *out) {
        if (head->websocket)
                return buffer_append_text(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        if (!body_may_be_a_request(head))
                return 0;
        return write_field(out, "Connection", "close");
}

static int write_framing(const HttpHead *head, Buffer *out) {
        char text[32];

        if (head->framing == HTTP_FRAMING_CHUNKED)
                return write_field(out, "Transfer-Encoding", "chunked");
        if (!head->has_length)
                return 0;
        (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) head->length);
        return write_field(out, "Content-Length", text);
}

/* Also what a client of gRPC, or of Connect, would take its messages encoded in. */
static bool is_dropped(const HttpHead *head, const char *name) {
        static const char *const names[] = { "host", "accept-encoding", "grpc-accept-encoding", "connect-accept-encoding",
                                             "sec-websocket-extensions" /* permessage-deflate would make frames unreadable */ };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (strcasecmp(name, names[i]) == 0)
                        return true;
        return http_field_is_hop_by_hop(head, name);
}

/* Is gzip, by its name, one of the codings that the client takes (RFC 9110, 12.5.3)? */
static bool accepts_gzip(const HttpHead *head) {
        const char *p = "";

        if (http_head_find(head, "accept-encoding", &p) != 1)
                return false;
        while (*p) {
                const char *weight;
                size_t n;
                bool gzip;

                p += strspn(p, ", \t");
                n = strcspn(p, ",; \t");
                gzip = n == strlen("gzip") && strncasecmp(p, "gzip", n) == 0;
                p += n;
                n = strcspn(p, ",");
                weight = memmem(p, n, "q=", 2);
                if (gzip)
                        return !weight || strtod(weight + 2, NULL) > 0;
                p += n;
        }
        return false;
}

/*
 * What the origin may encode its answer in: in what can be decoded here, but beside a secret in nothing. If text of the guest's and the secret
 * are compressed together, how much comes of it, and when, tells how alike they are (BREACH).
 */
static const char *choose_encoding(const HttpHead *head, const SubstitutePlan *plan) {
        return plan->n_items == 0 && accepts_gzip(head) ? "gzip" : "identity";
}

static int append_basic(Buffer *out, const char *value, const Substitution *s) {
        SecretView secret = secret_view(s->credential->source->secret);
        _cleanup_free_ char *user = NULL;
        const char *password;
        int r;

        r = decode_basic(value, &user, &password);
        if (r < 0)
                return r;
        return encode_basic(out, s->user ? (const void *) secret.bytes : user, s->user ? secret.size : strlen(user),
                            s->password ? (const void *) secret.bytes : password, s->password ? secret.size : strlen(password));
}

static int pass_substituted(const HttpField *field, const Substitution *s, SubstituteSink sink, void *userdata) {
        SecretView v = secret_view(s->credential->source->secret);
        Buffer value = {};
        int r;

        if (s->place->kind == PLACE_BASIC)
                r = append_basic(&value, field->value, s);
        else if ((r = buffer_append(&value, field->value, s->begin)) >= 0)
                r = buffer_append(&value, v.bytes, v.size);
        if (r >= 0)
                r = sink(field->name, buffer_data(&value), buffer_size(&value), true, userdata);
        buffer_done(&value);
        return r;
}

/* Items of the target stand in the order of their credentials' places: the next from here on. */
static const Substitution *next_in_target(const SubstitutePlan *plan, size_t from) {
        const Substitution *next = NULL;

        for (size_t i = 0; i < plan->n_items; i++) {
                const Substitution *s = &plan->items[i];

                if (s->place->kind == PLACE_QUERY && s->begin >= from && (!next || s->begin < next->begin))
                        next = s;
        }
        return next;
}

int substitute_target(const HttpHead *head, const SubstitutePlan *plan, Buffer *out) {
        const Substitution *s;
        size_t done = 0;
        int r;

        while ((s = next_in_target(plan, done))) {
                SecretView v = secret_view(s->credential->source->secret);

                if ((r = buffer_append(out, head->target + done, s->begin - done)) < 0 || (r = encode_percent(out, v.bytes, v.size)) < 0)
                        return r;
                done = s->end;
        }
        return buffer_append_text(out, head->target + done);
}

static int add_git(const SubstitutePlan *plan, SubstituteSink sink, void *userdata) {
        int r = 0;

        for (size_t i = 0; i < plan->n_items && r >= 0; i++) {
                const Substitution *s = &plan->items[i];
                Buffer value = {};
                SecretView v;

                if (s->place->kind != PLACE_GIT)
                        continue;
                v = secret_view(s->credential->source->secret);
                r = encode_basic(&value, s->place->name, strlen(s->place->name), v.bytes, v.size);
                if (r >= 0)
                        r = sink("Authorization", buffer_data(&value), buffer_size(&value), true, userdata);
                buffer_done(&value);
        }
        return r;
}

int substitute_fields(const HttpHead *head, const SubstitutePlan *plan, SubstituteSink sink, void *userdata) {
        const char *encoding = choose_encoding(head, plan);
        int r;

        r = sink("Accept-Encoding", encoding, strlen(encoding), false, userdata);
        for (size_t i = 0; i < head->n_fields && r >= 0; i++) {
                const HttpField *field = &head->fields[i];
                const Substitution *s = find_item(plan, i);

                /* whoever held the body has answered it */
                if ((plan->n_body > 0 || plan->answered) && strcasecmp(field->name, "expect") == 0)
                        continue;
                if (s)
                        r = pass_substituted(field, s, sink, userdata);
                else if (!is_dropped(head, field->name))
                        r = sink(field->name, field->value, strlen(field->value), false, userdata);
        }
        return r < 0 ? r : add_git(plan, sink, userdata);
}

int substitute_write(const HttpHead *head, const SubstitutePlan *plan, const char *host, uint16_t port, Buffer *out) {
        char authority[SUBSTITUTE_AUTHORITY_SIZE];
        int r;

        substitute_authority(host, port, authority);
        if ((r = buffer_append_text(out, head->method)) < 0 || (r = buffer_append_text(out, " ")) < 0 ||
            (r = substitute_target(head, plan, out)) < 0 || (r = buffer_append_text(out, " HTTP/1.1\r\n")) < 0 ||
            (r = write_field(out, "Host", authority)) < 0 || (r = write_framing(head, out)) < 0 || (r = write_end(head, out)) < 0 ||
            (r = substitute_fields(head, plan, write_line, out)) < 0)
                return r;
        return buffer_append_text(out, "\r\n");
}

void substitute_authority(const char *host, uint16_t port, char *ret) {
        if (port == 443)
                (void) snprintf(ret, SUBSTITUTE_AUTHORITY_SIZE, "%s", host);
        else
                (void) snprintf(ret, SUBSTITUTE_AUTHORITY_SIZE, "%s:%u", host, port);
}
