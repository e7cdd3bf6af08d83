# SPDX-License-Identifier: LGPL-2.1-or-later
# Compiles everything, inside the build root (see image/in-buildroot). Each folder's own .mk adds to:
#
#   LIB_SRCS     sources of libanchorhold.a
#   PROGRAMS     names; each is supervisor/main/NAME.c linked with libanchorhold.a
#   UNIT_TESTS   names; each is tests/unit/NAME.c (cmocka), linked with libanchorhold.a
#   FUZZERS      names; each is tests/fuzz/NAME.c with its corpus in tests/fuzz/corpus/NAME/
#   ALL          anything else that `all` should make
#
# VARIANT=asan builds the same below build/asan with the sanitizers.

.DELETE_ON_ERROR:
MAKEFLAGS += -rR
.DEFAULT_GOAL := all

VARIANT ?= plain
O := build/$(VARIANT)
V ?= 0
ifeq ($(V),1)
Q :=
msg =
else
Q := @
msg = @printf '  %-7s %s\n' $(1) $(2)
endif

CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG := clang

PKGS := libsystemd libbpf libnftnl libmnl sqlite3 libcurl jansson openssl libnghttp2 libllhttp libpsl
LDLIBS := $(shell pkg-config --libs $(PKGS)) -lldns -lpthread

WARNINGS := -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Wshadow -Wundef \
            -Wwrite-strings -Wmissing-prototypes -Wformat=2 -Wdate-time -Wvla
ifeq ($(CI),true)
WARNINGS += -Werror
endif
CPPFLAGS := -D_GNU_SOURCE -Isupervisor -Iebpf -I$(O)/gen $(shell pkg-config --cflags $(PKGS))
CFLAGS := -std=gnu17 -O2 -g -fPIE -fstack-protector-strong -fstack-clash-protection -ftrivial-auto-var-init=zero \
          -fcf-protection $(WARNINGS)
LDFLAGS := -pie -Wl,-z,relro,-z,now -Wl,--as-needed
ifeq ($(VARIANT),asan)
CFLAGS := -std=gnu17 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined $(WARNINGS)
LDFLAGS := -fsanitize=address,undefined
else
CPPFLAGS += -D_FORTIFY_SOURCE=3
endif

LIB_SRCS :=
PROGRAMS :=
UNIT_TESTS :=
FUZZERS :=
ALL :=
include $(sort $(wildcard supervisor/*/*.mk ebpf/*.mk tests/unit/*.mk tests/fuzz/*.mk))

LIB      := $(O)/libanchorhold.a
LIB_OBJS := $(LIB_SRCS:%.c=$(O)/%.o)
BIN      := $(PROGRAMS:%=$(O)/bin/%)
TESTBIN  := $(UNIT_TESTS:%=$(O)/tests/%)

.PHONY: all unit asan
all: $(BIN) $(TESTBIN) $(ALL)

$(O)/%.o: %.c
	$(call msg,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJS)
	$(call msg,AR,$@)
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)ar rcs $@ $(LIB_OBJS)

$(BIN): $(O)/bin/%: $(O)/supervisor/main/%.o $(LIB)
	$(call msg,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< $(LIB) $(LDLIBS) -o $@

$(TESTBIN): $(O)/tests/%: $(O)/tests/unit/%.o $(LIB)
	$(call msg,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< $(LIB) -lcmocka $(LDLIBS) -o $@

# Unit tests run from the top of the tree; one that fails stops nothing but fails the target.
unit: $(TESTBIN) $(ALL)
	@failed=; for t in $(TESTBIN); do \
		printf '  %-7s %s\n' TEST $$t; \
		$$t >$$t.log 2>&1 && tail -n 2 $$t.log | grep -a PASSED || { failed="$$failed $$t"; cat $$t.log; }; \
	done; \
	if [ -n "$$failed" ]; then printf 'unit tests failed:%s\n' "$$failed" >&2; exit 1; fi

asan:
	@$(MAKE) -f build.mk VARIANT=asan unit

-include $(LIB_OBJS:.o=.d) $(PROGRAMS:%=$(O)/supervisor/main/%.d) $(UNIT_TESTS:%=$(O)/tests/unit/%.d)
