/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <libnftnl/common.h>

#include "net/nft-batch.h"

/* Room for the largest single message of ours; checked before it is built, for libmnl does not. */
#define MESSAGE_MAX 2048

static char *next(NftBatch *b) {
        if (b->r == 0 && b->size - b->used < MESSAGE_MAX)
                b->r = -ENOBUFS;
        return b->r < 0 ? NULL : b->buffer + b->used;
}

void nft_batch_begin(NftBatch *b) {
        char *at = next(b);

        if (at)
                b->used += nftnl_batch_begin(at, 0)->nlmsg_len;
}

void nft_batch_end(NftBatch *b) {
        char *at = next(b);

        if (at)
                b->used += nftnl_batch_end(at, b->n_acks + 1)->nlmsg_len;
}

struct nlmsghdr *nft_batch_message(NftBatch *b, uint16_t type, uint16_t flags) {
        char *at = next(b);

        if (!at)
                return NULL;
        return nftnl_nlmsg_build_hdr(at, type, b->family, (uint16_t) (NLM_F_CREATE | NLM_F_ACK | flags), ++b->n_acks);
}

void nft_batch_took(NftBatch *b, const struct nlmsghdr *nlh) {
        b->used += nlh->nlmsg_len;
}
