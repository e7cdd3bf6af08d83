# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/audit/audit-client.c
