/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A reader for CSV as RFC 4180 describes it, fed with pieces of any size. */

#include <stdbool.h>
#include <stddef.h>

typedef struct CsvReader CsvReader;

/* Gets each complete record; fields are valid during the call only. False stops reading. */
typedef bool (*CsvRecord)(char *const *fields, size_t n_fields, void *userdata);

CsvReader *csv_reader_new(CsvRecord on_record, void *userdata);
void csv_reader_free(CsvReader *r);

/* 0; -1 for malformed input; -2 when out of memory; 1 when the callback stopped. */
int csv_reader_feed(CsvReader *r, const char *data, size_t size);

/* The end of the input: a last record without a line break still counts. Results as above. */
int csv_reader_finish(CsvReader *r);

/* The line on which reading stopped, from 1. */
unsigned long csv_reader_line(const CsvReader *r);
