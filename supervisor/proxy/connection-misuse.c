/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A sentinel has no business in cleartext, whichever host it is for: nothing is put in its place there, and who carries it away is to be
 * noticed. Heads are searched before egressd is asked about them, bodies of any size as they come; neither leaves before. It is inject's own search
 * (inject/tripwire-api.h) and inject's record, credential.misuse, which flags the run.
 *
 * A body in chunks is searched twice: its content, however it is cut, and everything as it came, since the lines between chunks and the trailer carry text as well.
 */

#include <errno.h>
#include <string.h>

#include "proxy/connection-private.h"
#include "util/json.h"
#include "util/log.h"

void sentinels_done(Sentinels *s) {
        for (size_t i = 0; i < s->n; i++) {
                free(s->credentials[i]);
                free(s->texts[i]);
        }
        free(s->credentials);
        free(s->texts);
        *s = (Sentinels) {};
}

/* ---- which ones ---- */

static int take_sentinels(Sentinels *s, json_t *params) {
        json_t *list = json_object_get(params, "sentinels"), *text;
        const char *name;

        if (s->known)
                return 0;
        if (!json_is_object(list))
                return -EBADMSG;
        s->credentials = calloc(json_object_size(list) + 1, sizeof(*s->credentials));
        s->texts = calloc(json_object_size(list) + 1, sizeof(*s->texts));
        if (!s->credentials || !s->texts)
                return -ENOMEM;
        json_object_foreach(list, name, text) {
                if (json_string_length(text) == 0)
                        return -EBADMSG;
                s->credentials[s->n] = strdup(name);
                s->texts[s->n++] = strdup(json_string_value(text));
                if (!s->credentials[s->n - 1] || !s->texts[s->n - 1])
                        return -ENOMEM;
        }
        s->known = true;
        return 0;
}

static void connection_on_sentinels(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Connection *c = userdata;
        Sentinels *s = &c->proxy->sentinels;
        int r = 0;

        if (!connection_called(c))
                return;

        if (!error)
                r = take_sentinels(s, params);
        else if (strcmp(error, "io.anchorhold.Secret.NoSuchRun") == 0)
                s->known = true; /* it never got any: a run is registered before its units start */
        if (error && !s->known)
                log_warning("%s:%u: secretd does not say which sentinels to look for: %s", c->name, c->port, error);
        if (!s->known)
                sentinels_done(s);
        if (r < 0)
                log_error_errno(r, "%s:%u: what secretd says of the run's sentinels cannot be used", c->name, c->port);
        if (s->known)
                connection_read(c);
        else
                connection_refuse(c, "unavailable");
}

void connection_arm(Connection *c) {
        if (c->proxy->sentinels.known)
                connection_read(c);
        else if (connection_call(c, c->proxy->secretd, "io.anchorhold.Secret.Sentinels", json_object(), NULL, 0, LOOK_USEC, connection_on_sentinels) < 0)
                connection_refuse(c, "unavailable");
}

/* ---- search ---- */

static int record_misuse(Connection *c, size_t number, const char *where) {
        const char *credential = c->proxy->sentinels.credentials[number];
        size_t n_path = c->path ? strcspn(c->path, "?") : 0;
        _cleanup_free_ char *key = NULL, *path = NULL, *safe = NULL;
        json_t *data = NULL;

        c->misused = true;
        connection_replace(&c->reason, "credential-misuse");
        connection_replace(&c->rule, "default");
        log_warning("blocked the sentinel of credential %s on its way to %s", credential, c->name);

        key = text_format("%s %s %u", credential, c->name, c->port);
        path = text_escape(n_path > 0 ? c->path : "", n_path < 256 ? n_path : 256, false);
        safe = text_escape(where, strlen(where), false);
        if (key && path && safe)
                data = json_pack("{s:s, s:i, s:s, s:s?, s:s, s:s, s:s}", "name", c->name, "port", (int) c->port, "reason", "misuse", "method", c->method,
                                 "path", path, "where", safe, "credential", credential);
        if (!data)
                return log_oom();
        notes_add(c->proxy->notes, "credential.misuse", key, data);
        return 0;
}

bool connection_misuses_head(Connection *c, const void *head, size_t size) {
        const Sentinels *s = &c->proxy->sentinels;
        char where[TRIPWIRE_WHERE_SIZE];
        ssize_t number;

        number = tripwire_find_in_head(head, size, (const char *const *) s->texts, s->n, where);
        if (number >= 0)
                (void) record_misuse(c, (size_t) number, where); /* blocked, with or without its record */
        return number >= 0;
}

static int search(Connection *c, Tripwire **t, const void *data, size_t size, bool last) {
        const Sentinels *s = &c->proxy->sentinels;
        size_t number = 0;
        int r = 0;

        if (s->n == 0 || (!*t && size == 0))
                return 0;
        if (!*t)
                r = tripwire_new(t, (const char *const *) s->texts, s->n);
        if (r >= 0)
                r = tripwire_feed(*t, data, size, last, &number);
        if (r <= 0)
                return r;
        (void) record_misuse(c, number, "body");
        return 1;
}

static void connection_on_content(const void *data, size_t size, void *userdata) {
        Connection *c = userdata;

        if (c->failure >= 0 && !c->misused)
                c->failure = search(c, &c->content, data, size, false);
}

void connection_watch_body(Connection *c) {
        http_follower_watch(c->follower, connection_on_content, c);
}

int connection_misuses_body(Connection *c, const void *data, size_t size, bool last) {
        int r = c->failure;

        if (r >= 0 && !c->misused && last)
                r = search(c, &c->content, NULL, 0, true);
        if (r >= 0 && !c->misused && http_follower_is_chunked(c->follower))
                r = search(c, &c->frames, data, size, last);
        return r < 0 ? r : c->misused;
}
