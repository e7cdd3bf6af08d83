/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by the ledger's own files. */

#include "ledger/ledger.h"
#include "util/sqlite.h"

struct Ledger {
        Db *db; /* owned */
};

enum { LEDGER_SCHEMA_VERSION = 2 };

/* Brings an empty file to the current schema, in one transaction; -EPROTO for a schema of a newer version. */
int ledger_schema_apply(Db *db);

/* Puts an audit event into the outbox; part of the caller's transaction. `data` is a JSON text. */
int ledger_outbox_add(Ledger *l, const char *event, const char *run, const char *item, const char *actor, const char *data);

/* Reads one item by id: 0, LEDGER_E_NOT_FOUND, or negative errno. */
int ledger_item_read(Ledger *l, const char *id, LedgerItem *ret);

/* Every row as an object (see the head of ledger-query.c), in one array; the caller's. */
int ledger_query_array(Ledger *l, const char *sql, const DbArg *args, json_t **ret);

/* The columns that ledger_item_from_row() reads; the item is i, its lease (if any) l. */
#define LEDGER_ITEM_COLUMNS                                                                             \
        "SELECT i.id, i.run, i.state, i.revision, i.attempt, i.max_attempts, i.leases, l.token,"        \
        " i.workflow, i.workflow_digest, i.base, i.task, i.command, i.template, i.template_digest,"     \
        " i.agent, i.stage, i.result_commit, i.reason, i.repository, i.options"                                    \
        " FROM item i LEFT JOIN lease l ON l.item = i.id "
int ledger_item_from_row(DbStmt *s, LedgerItem *ret);
