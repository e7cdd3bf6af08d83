/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* host-esp [--bless]: the partition that UEFI boots from (host/host-esp.c). Without an option: makes its entries those of ostree's. --bless: the boots of
 * the image that runs are not counted any more. */

#include <stdlib.h>
#include <string.h>

#include "host/host-esp.h"
#include "util/log.h"

int main(int argc, char *argv[]) {
        log_init("host-esp");
        if (argc == 1)
                return host_esp_follow() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc == 2 && strcmp(argv[1], "--bless") == 0)
                return host_esp_bless() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        log_error("usage: host-esp [--bless]");
        return 2;
}
