/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Messages to nf_tables, one after the other in a buffer, of which the kernel takes all or none. */

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

typedef struct NftBatch {
        char *buffer;    /* borrowed */
        size_t size, used;
        uint16_t family; /* NFPROTO_…, the caller's to set before each table: of it and of what is put into it */
        unsigned n_acks; /* how many acknowledgements the kernel will send: one for each message so far */
        int r;           /* the first error; everything after it is a no-op */
} NftBatch;

void nft_batch_begin(NftBatch *b);
void nft_batch_end(NftBatch *b);

/* The header of the next message, to put the payload behind; NULL after an error. nft_batch_took() when it is complete. */
struct nlmsghdr *nft_batch_message(NftBatch *b, uint16_t type, uint16_t flags);
void nft_batch_took(NftBatch *b, const struct nlmsghdr *nlh);
