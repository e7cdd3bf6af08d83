/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where in a text a JSON value stands, which jansson does not tell. Pure functions that walk the text once; it is one that
 * json_parse() took, but anything is survived. */

#include <stddef.h>
#include <stdint.h>

/* The line (from 1) on which the value at an RFC 6901 pointer begins; if it is not there, that of the innermost
 * container that is. -EINVAL: the text is no JSON up to that place, or the pointer is none. */
int json_position(const char *data, size_t size, const char *pointer, unsigned *ret_line);

/* The bytes of the value at a pointer: 1 and [*ret_begin, *ret_end), 0 if it is not there, -EINVAL as above. */
int json_range(const char *data, size_t size, const char *pointer, size_t *ret_begin, size_t *ret_end);

/* The lines of all elements of the array that is a member of the top object; none if there is no such array. The list is the caller's. */
int json_element_lines(const char *data, size_t size, const char *key, uint32_t **ret_lines, size_t *ret_n);
