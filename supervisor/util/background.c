/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A thread for each job, made when it is the job's turn. The list of jobs is the loop's alone; a thread sets its own job's `finished`, wakes the loop
 * through one eventfd, and ends. The loop joins it before it calls anybody, so that whatever the thread wrote is to be seen.
 */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "util/background.h"

typedef struct Job Job;

struct Job {
        Job *next;
        BackgroundWork work;
        BackgroundDone done;
        void *userdata;
        int wake_fd;          /* borrowed */
        pthread_t thread;
        bool running;         /* there is a thread, and it was not joined */
        int result;           /* negative: there could be none */
        atomic_bool finished;
};

struct Background {
        sd_event_source *wake; /* owned */
        int wake_fd;           /* owned */
        unsigned n_threads, n_running;
        Job *jobs;             /* owned; the oldest first */
};

static void *job_main(void *userdata) {
        Job *j = userdata;
        int fd = j->wake_fd;

        j->work(j->userdata);
        atomic_store(&j->finished, true);
        (void) eventfd_write(fd, 1);
        return NULL;
}

static int job_start(Job *j) {
        sigset_t all, before;
        int r;

        /* a thread inherits the mask: signals stay the loop's */
        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&j->thread, NULL, job_main, j);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        return -r;
}

static void start_waiting(Background *b) {
        for (Job *j = b->jobs; j && b->n_running < b->n_threads; j = j->next) {
                if (j->running || j->result < 0)
                        continue;
                j->result = job_start(j);
                if (j->result >= 0) {
                        j->running = true;
                        b->n_running++;
                } else {
                        /* it is told so from the loop, as if it had run */
                        atomic_store(&j->finished, true);
                        (void) eventfd_write(b->wake_fd, 1);
                }
        }
}

/* Takes it out of the list, with its thread's end. */
static void job_take(Background *b, Job *j) {
        for (Job **p = &b->jobs; *p; p = &(*p)->next)
                if (*p == j) {
                        *p = j->next;
                        break;
                }
        if (j->running) {
                (void) pthread_join(j->thread, NULL);
                b->n_running--;
        }
}

static Job *find_finished(const Background *b) {
        for (Job *j = b->jobs; j; j = j->next)
                if (atomic_load(&j->finished))
                        return j;
        return NULL;
}

/* One at a time: whoever is called may free this object. */
static int on_wake(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Background *b = userdata;
        eventfd_t ignored;
        Job *j;

        (void) eventfd_read(fd, &ignored);
        j = find_finished(b);
        if (!j)
                return 0;

        job_take(b, j);
        start_waiting(b);
        if (find_finished(b))
                (void) eventfd_write(fd, 1);
        j->done(j->result, j->userdata);
        free(j);
        return 0;
}

int background_start(Background *b, BackgroundWork work, BackgroundDone done, void *userdata) {
        Job *j = malloc(sizeof(*j)), **p = &b->jobs;

        if (!j)
                return -ENOMEM;
        *j = (Job) { .work = work, .done = done, .userdata = userdata, .wake_fd = b->wake_fd };
        while (*p)
                p = &(*p)->next;
        *p = j;
        start_waiting(b);
        return 0;
}

bool background_cancel(Background *b, const void *userdata) {
        for (Job *j = b->jobs; j; j = j->next) {
                bool ran = j->running;

                if (j->userdata != userdata)
                        continue;
                job_take(b, j);
                free(j);
                start_waiting(b);
                return ran;
        }
        return false;
}

int background_new(Background **ret, sd_event *event, unsigned n_threads) {
        _cleanup_(background_freep) Background *b = NULL;
        int r;

        b = malloc(sizeof(*b));
        if (!b)
                return -ENOMEM;
        *b = (Background) { .n_threads = n_threads, .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
        if (b->wake_fd < 0)
                return -errno;
        r = sd_event_add_io(event, &b->wake, b->wake_fd, EPOLLIN, on_wake, b);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(b);
        return 0;
}

Background *background_free(Background *b) {
        if (!b)
                return NULL;

        b->n_threads = 0;
        while (b->jobs) {
                Job *j = b->jobs;

                job_take(b, j);
                free(j);
        }
        (void) sd_event_source_disable_unref(b->wake);
        (void) fd_close(b->wake_fd);
        free(b);
        return NULL;
}
