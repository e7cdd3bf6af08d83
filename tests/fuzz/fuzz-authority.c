/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a guest names: the target of a CONNECT, of an absolute-form request, a host name, an address. Whatever is taken is in one form, and stays in it. */

#include <stdlib.h>
#include <string.h>

#include "egress/address.h"
#include "policy/policy.h"
#include "proxy/http-head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *text) {
        char name[254], again[254];
        Address address;

        if (egress_normalise_name(text, name) < 0)
                return;
        if (name[0] == '\0' || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-._")] != '\0' || address_parse(name, &address) >= 0)
                abort();
        if (egress_normalise_name(name, again) < 0 || strcmp(name, again) != 0)
                abort();
}

static void check_address(const char *text) {
        char written[ADDRESS_TEXT_SIZE];
        Address address, again;

        if (address_parse(text, &address) < 0)
                return;
        if (address_parse(address_format(&address, written), &again) < 0 || !address_equal(&address, &again))
                abort();
}

static void check_authority(const char *text) {
        char host[HTTP_HOST_MAX + 1];
        uint16_t port = 0;

        if (!http_split_authority(text, 0, host, &port))
                return;
        if (port == 0 || host[0] == '\0' || strlen(host) >= strlen(text) || strncmp(text, host, strlen(host)) != 0)
                abort();
        check_name(host);
}

static void check_absolute(const char *text) {
        char authority[HTTP_HOST_MAX + 1];
        const char *path;

        if (!http_split_absolute(text, authority, &path))
                return;
        /* a target without a path has "/", which is not of the text */
        if (((path < text || path > text + strlen(text)) && strcmp(path, "/") != 0) || strpbrk(authority, "/?#@"))
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        char *text;

        text = malloc(size + 1);
        if (!text)
                return 0;
        memcpy(text, data, size);
        text[size] = '\0';

        check_name(text);
        check_address(text);
        check_authority(text);
        check_absolute(text);
        free(text);
        return 0;
}
