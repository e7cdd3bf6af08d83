/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "host/host-state-api.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

enum { STATE_MAX = 1024 * 1024, HEALTHY_MAX = 64, LEFT_MAX = 16, STARTS_MAX = 1000, LOCK_LOOK_USEC = 20 * 1000 };

/* Of a file beside it, since each save makes the file itself another one. */
int host_state_lock(const char *path) {
        uint64_t until = time_monotonic() + HOST_STATE_WAIT_USEC;
        _cleanup_free_ char *name = text_format("%s.lock", path);
        _cleanup_fd_ int fd = -1;

        fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
        if (fd < 0) {
                log_warning("%s.lock cannot be opened (%s): what somebody else changes at this moment may be lost", path, strerror(errno));
                return -1;
        }
        while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if ((errno != EWOULDBLOCK && errno != EINTR) || time_monotonic() > until) {
                        log_warning("%s.lock cannot be had (%s): what somebody else changes at this moment may be lost", path, strerror(errno));
                        return -1;
                }
                (void) usleep(LOCK_LOOK_USEC);
        }
        return TAKE_FD(fd);
}

json_t *host_state_load(const char *path) {
        _cleanup_free_ char *text = NULL;
        json_t *state = NULL;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, STATE_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &state, NULL);
        if (r >= 0 && json_is_object(state))
                return state;

        if (r != -ENOENT)
                log_warning("%s cannot be read; what is known about images is forgotten", path);
        (void) json_unref(state);
        return json_object();
}

int host_state_save(const char *path, const json_t *state) {
        _cleanup_free_ char *text = json_canonical(state);

        return text ? io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0600) : -ENOMEM;
}

bool host_state_is_healthy(const json_t *state, const char *digest) {
        const json_t *one;
        size_t i;

        json_array_foreach(json_object_get(state, "healthy"), i, one)
                if (strcmp(json_string_value(one) ?: "", digest) == 0)
                        return true;
        return false;
}

int host_state_set_healthy(json_t *state, const char *digest) {
        json_t *list = json_object_get(state, "healthy");

        if (host_state_is_healthy(state, digest))
                return 0;
        if (!json_is_array(list)) {
                list = json_array();
                if (!list || json_object_set_new(state, "healthy", list) < 0)
                        return -ENOMEM;
        }
        while (json_array_size(list) >= HEALTHY_MAX)
                (void) json_array_remove(list, 0);
        return json_array_append_new(list, json_string(digest)) < 0 ? -ENOMEM : 0;
}

static void forget_starts(json_t *state, const char *digest) {
        json_t *starts = json_object_get(state, "starts");

        (void) json_object_del(starts, digest);
        if (json_object_size(starts) == 0)
                (void) json_object_del(state, "starts");
}

int host_state_count_start(const char *path, json_t *state, const char *digest) {
        _cleanup_free_ char *started = text_format("%s.started.%s", path, digest);
        _cleanup_fd_ int fd = -1;
        json_t *starts;
        json_int_t n;

        fd = started ? open(started, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
        if (fd < 0 && (!started || errno != EEXIST))
                return started ? -errno : -ENOMEM;
        if (fd >= 0)
                forget_starts(state, digest);

        starts = json_object_get(state, "starts");
        if (!json_is_object(starts)) {
                starts = json_object();
                if (!starts || json_object_set_new(state, "starts", starts) < 0)
                        return -ENOMEM;
        }
        n = json_integer_value(json_object_get(starts, digest));
        n = n < 0 || n > STARTS_MAX ? 1 : n + 1;
        return json_object_set_new(starts, digest, json_integer(n)) < 0 ? -ENOMEM : (int) n;
}

void host_state_judged(const char *path, json_t *state, const char *digest) {
        _cleanup_free_ char *started = text_format("%s.started.%s", path, digest);

        if (started)
                (void) unlink(started);
        forget_starts(state, digest);
}

const json_t *host_state_rejected(const json_t *state, const char *digest) {
        return json_object_get(json_object_get(state, "rejected"), digest);
}

int host_state_reject(json_t *state, const char *digest, const char *reason) {
        json_t *rejected = json_object_get(state, "rejected");
        char time[TIME_TEXT_SIZE];

        if (!json_is_object(rejected)) {
                rejected = json_object();
                if (!rejected || json_object_set_new(state, "rejected", rejected) < 0)
                        return -ENOMEM;
        }
        text_time(time_realtime(), time);
        return json_object_set_new(rejected, digest, json_pack("{s:s, s:s, s:b}", "reason", reason, "time", time, "told", 0)) < 0 ? -ENOMEM : 0;
}

const char *host_state_left(const json_t *state, const char *digest) {
        return json_string_value(json_object_get(json_object_get(state, "left"), digest));
}

/* By what it says: the file keeps no order. */
static const char *oldest(json_t *left) {
        const char *digest, *found = NULL;
        json_t *time;

        json_object_foreach(left, digest, time)
                if (!found || strcmp(json_string_value(time) ?: "", json_string_value(json_object_get(left, found)) ?: "") < 0)
                        found = digest;
        return found;
}

static int leave(json_t *state, const char *digest) {
        json_t *left = json_object_get(state, "left");
        char time[TIME_TEXT_SIZE];

        if (!json_is_object(left)) {
                left = json_object();
                if (!left || json_object_set_new(state, "left", left) < 0)
                        return -ENOMEM;
        }
        (void) json_object_del(left, digest);
        while (json_object_size(left) >= LEFT_MAX)
                (void) json_object_del(left, oldest(left));
        text_time(time_realtime(), time);
        return json_object_set_new(left, digest, json_string(time)) < 0 ? -ENOMEM : 0;
}

int host_state_go_back(json_t *state, const HostDeployments *d) {
        const HostDeployment *back = host_find(d, HOST_ROLLBACK);

        for (size_t i = 0; i < d->n; i++) {
                const HostDeployment *one = &d->list[i];
                int r;

                if ((one->role != HOST_BOOTED && one->role != HOST_STAGED) || !*one->digest)
                        continue;
                r = leave(state, one->digest);
                if (r < 0)
                        return r;
        }
        if (back)
                host_state_wanted(state, back->digest);
        return 0;
}

void host_state_wanted(json_t *state, const char *digest) {
        json_t *left = json_object_get(state, "left");

        (void) json_object_del(left, digest);
        if (json_object_size(left) == 0)
                (void) json_object_del(state, "left");
}

void host_state_accept(const char *path, json_t *state, const char *digest) {
        json_t *rejected = json_object_get(state, "rejected");

        (void) json_object_del(rejected, digest);
        if (json_object_size(rejected) == 0)
                (void) json_object_del(state, "rejected");
        host_state_wanted(state, digest);
        host_state_judged(path, state, digest);
}

bool host_state_goes_back(const json_t *state, const HostDeployments *d, const char **ret_why) {
        const HostDeployment *booted = host_find(d, HOST_BOOTED), *back = host_find(d, HOST_ROLLBACK);

        *ret_why = NULL;
        if (!booted || !*booted->digest)
                *ret_why = "it is not known which image this is";
        else if (host_state_is_healthy(state, booted->digest))
                *ret_why = "this image has worked on this host before";
        else if (!back)
                *ret_why = "there is no other deployment";
        else if (*back->digest && host_state_rejected(state, back->digest))
                *ret_why = "the other deployment was rejected as well";
        return !*ret_why;
}
