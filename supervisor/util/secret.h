/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A value that must not leave: locked in memory, kept out of core dumps, zeroed when freed. It is no
 * string: nothing here yields a pointer to characters, or one that C turns into such without a word, so that neither printf nor jansson takes it by
 * accident: that does not compile (test-secret-type.c). What copies bytes takes it, and whoever must look at them writes a cast. (No compiler
 * sees into the arguments of json_pack().)
 */

#include <stdbool.h>
#include <stddef.h>

#include "util/cleanup.h"

typedef struct Secret Secret;

/* Also of a file of many: what PID 1 gives a unit is a mebibyte at most. */
enum { SECRET_MAX = 1024 * 1024 };

/* Never defined: a byte of a secret is of no type that anything prints. */
typedef struct SecretByte SecretByte;

/* A look at the bytes, valid as long as the secret. There is no zero byte behind it. */
typedef struct SecretView {
        const SecretByte *bytes;
        size_t size;
} SecretView;

/* Copies; the caller zeroes its own copy. */
int secret_new(Secret **ret, const void *data, size_t size);
int secret_new_random(Secret **ret, size_t size);
/* What is left of a file below dir_fd, at most SECRET_MAX bytes. */
int secret_read_file(Secret **ret, int dir_fd, const char *path);
/* What is left of a descriptor of whatever kind, to its end, at most SECRET_MAX bytes. -ENODATA: nothing. */
int secret_read_fd(Secret **ret, int fd);
Secret *secret_free(Secret *s);
DEFINE_CLEANUP(Secret *, secret_free)

SecretView secret_view(const Secret *s);

/* Equal in content; the time depends on the sizes alone. */
bool secret_equals(const Secret *s, const void *data, size_t size);

/* Zeroes and frees a heap copy that had to exist for a moment. */
void secret_erase(void *data, size_t size);

enum {
        _SECRET_E_SUCCESS,
        SECRET_E_SWAPPABLE, /* the limit of locked memory is too low for the whole process */
};

/* For processes that hold secrets: no core dump, not readable by others of the same user, nothing of it
 * swapped. Negative errno if the first two cannot be had. SECRET_E_SWAPPABLE: the pages of each Secret are locked
 * all the same (or making one fails), and copies that a library makes depend on the unit's MemorySwapMax=. */
int secret_protect_process(void);
