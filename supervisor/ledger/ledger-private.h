/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by the ledger's own files. */

#include "ledger/ledger.h"
#include "util/sqlite.h"

struct Ledger {
        Db *db; /* owned */
};

enum { LEDGER_SCHEMA_VERSION = 1 };

/* Brings an empty file to the current schema, in one transaction; -EPROTO for a schema of a newer version. */
int ledger_schema_apply(Db *db);

/* Puts an audit event into the outbox; part of the caller's transaction. `data` is a JSON text. */
int ledger_outbox_add(Ledger *l, const char *event, const char *run, const char *item, const char *actor, const char *data);

/* Reads one item by id: 0, LEDGER_E_NOT_FOUND, or negative errno. */
int ledger_item_read(Ledger *l, const char *id, LedgerItem *ret);
