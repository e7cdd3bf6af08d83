/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What an API answers about installations and tokens: whatever it is, no token is read that could not stand in a head, or that has no end. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "inject/token-answer.h"
#include "util/json.h"

#define PROOF "a.signed.proof"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char asked[] = "{\"contents\": \"write\"}";
        char reason[TOKEN_ANSWER_REASON_SIZE] = "", *copy = malloc(size + 1);
        _cleanup_json_ json_t *permissions = NULL;
        _cleanup_(secret_freep) Secret *token = NULL, *proof = NULL;
        uint64_t now = 1790000000ULL * 1000000, expires = 0;
        int r;

        if (!copy || json_parse(asked, strlen(asked), &permissions, NULL) < 0 || secret_new(&proof, PROOF, strlen(PROOF)) < 0)
                abort();
        memcpy(copy, data, size);
        (void) token_answer_read_installation(copy, size);
        token_answer_read_message(copy, size, proof, reason);
        if (strstr(reason, PROOF))
                __builtin_trap();
        r = token_answer_read(copy, size, proof, permissions, "acme/widgets", now, &token, &expires, reason);
        if ((r >= 0) != (token != NULL)) /* used, or to be revoked: none is dropped */
                __builtin_trap();
        if (token) {
                SecretView v = secret_view(token);
                const char *p = (const char *) v.bytes;

                if (strstr(reason, PROOF) || memmem(reason, strlen(reason), p, v.size))
                        __builtin_trap();
                for (size_t i = 0; i < v.size; i++)
                        if (p[i] < 0x21 || p[i] > 0x7e)
                                __builtin_trap();
                if (expires <= now || expires > now + 86400ULL * 1000000)
                        __builtin_trap();
        }
        free(copy);
        return 0;
}
