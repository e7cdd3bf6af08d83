/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/decode.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#include "util/cleanup.h"
#include "util/text.h"

size_t decode_percent(const char *data, size_t size, bool form, char *ret) {
        size_t n = 0;

        for (size_t i = 0; i < size; i++) {
                if (data[i] == '%' && size - i > 2 && text_hex_digit(data[i + 1]) >= 0 && text_hex_digit(data[i + 2]) >= 0) {
                        ret[n++] = (char) (text_hex_digit(data[i + 1]) << 4 | text_hex_digit(data[i + 2]));
                        i += 2;
                } else
                        ret[n++] = form && data[i] == '+' ? ' ' : data[i];
        }
        return n;
}

bool decode_next_parameter(const char *target, size_t *at, DecodedParameter *ret) {
        size_t n, n_key;

        if (!target[*at])
                return false;
        (*at)++;
        n = strcspn(target + *at, "&");
        n_key = strcspn(target + *at, "=&");
        *ret = (DecodedParameter) { .name = malloc(n_key + 1), .begin = *at + (n_key < n ? n_key + 1 : n), .end = *at + n };
        if (ret->name) {
                ret->n_name = decode_percent(target + *at, n_key, true, ret->name);
                ret->name[ret->n_name] = '\0';
        }
        *at += n;
        return true;
}

void decode_parameter_done(DecodedParameter *p) {
        free(p->name);
}

int encode_percent(Buffer *out, const void *data, size_t size) {
        static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", digits[] = "0123456789ABCDEF";
        const unsigned char *p = data;
        int r = 0;

        for (size_t i = 0; i < size && r >= 0; i++) {
                char escaped[3] = { '%', digits[p[i] >> 4], digits[p[i] & 15] };

                r = p[i] && strchr(plain, p[i]) ? buffer_append(out, p + i, 1) : buffer_append(out, escaped, 3);
                explicit_bzero(escaped, sizeof(escaped));
        }
        return r;
}

/* Base64 as clients write it: with or without its padding. */
static int decode_base64(const char *text, size_t size, char **ret, size_t *ret_size) {
        _cleanup_free_ unsigned char *padded = NULL, *decoded = NULL;
        size_t n, padding = 0;
        int r;

        while (size > 0 && text[size - 1] == '=' && padding < 2) {
                size--;
                padding++;
        }
        n = (size + 3) / 4 * 4;
        if (size == 0 || size % 4 == 1 || (padding > 0 && size + padding != n))
                return -EINVAL;

        padded = malloc(n + 1);
        decoded = malloc(n / 4 * 3 + 1);
        if (!padded || !decoded)
                return -ENOMEM;
        memcpy(padded, text, size);
        memset(padded + size, '=', n - size);
        padded[n] = '\0';

        r = EVP_DecodeBlock(decoded, padded, (int) n);
        if (r < 0)
                return -EINVAL;
        *ret_size = (size_t) r - (n - size);
        decoded[*ret_size] = '\0';
        *ret = (char *) TAKE_PTR(decoded);
        return 0;
}

int decode_basic(const char *value, char **ret, const char **ret_password) {
        _cleanup_free_ char *text = NULL;
        char *colon;
        size_t size;
        int r;

        if (strncasecmp(value, "basic ", 6) != 0)
                return -EINVAL;
        value += 6 + strspn(value + 6, " ");
        size = strlen(value);
        while (size > 0 && value[size - 1] == ' ')
                size--;
        r = decode_base64(value, size, &text, &size);
        if (r < 0)
                return r;

        colon = strchr(text, ':');
        if (!colon || memchr(text, '\0', size))
                return -EINVAL;
        *colon = '\0';
        *ret_password = colon + 1;
        *ret = TAKE_PTR(text);
        return 0;
}

int encode_basic(Buffer *out, const void *user, size_t user_size, const void *password, size_t password_size) {
        size_t size = user_size + 1 + password_size, room = (size + 2) / 3 * 4 + 1;
        unsigned char *plain = malloc(size), *encoded = malloc(room), *p;
        int r = plain && encoded ? 0 : -ENOMEM;

        if (r >= 0) {
                p = mempcpy(plain, user, user_size);
                *p++ = ':';
                memcpy(p, password, password_size);
                r = buffer_append_text(out, "Basic ");
        }
        if (r >= 0)
                r = buffer_append(out, encoded, (size_t) EVP_EncodeBlock(encoded, plain, (int) size));
        if (plain)
                explicit_bzero(plain, size);
        if (encoded)
                explicit_bzero(encoded, room);
        free(plain);
        free(encoded);
        return r;
}
