/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reading, writing and making files, always bounded and complete. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Writes all of data; restarts after EINTR. 0, or negative errno. */
int io_write_full(int fd, const void *data, size_t size);

/* Reads until size bytes or end of file; the number of bytes read, or negative errno. */
ssize_t io_read_full(int fd, void *data, size_t size);

/* Reads what is left of fd, at most max bytes (-EFBIG beyond). The buffer is the caller's and has a
 * zero byte after its last one. */
int io_read_fd(int fd, size_t max, char **ret_data, size_t *ret_size);

/* The same for a file below dir_fd (AT_FDCWD for the working directory). */
int io_read_file(int dir_fd, const char *path, size_t max, char **ret_data, size_t *ret_size);

/* Replaces path with data: temporary file, fsync, rename, fsync of the folder. */
int io_write_file_atomic(int dir_fd, const char *path, const void *data, size_t size, mode_t mode);

/* Copies from one descriptor to the other until end of file, at most max bytes (-EFBIG beyond).
 * Negative errno, or 0. ret_size may be NULL. */
int io_copy(int from_fd, int to_fd, uint64_t max, uint64_t *ret_size);

/* An unnamed, unsealed memory file; the descriptor is the caller's. */
int io_memfd(const char *name, const void *data, size_t size);

/* O_NONBLOCK on or off. */
int io_set_nonblock(int fd, int on);

/* Connects a new O_CLOEXEC stream socket to a Unix path. The descriptor, or negative errno. */
int io_connect_unix(const char *path);
