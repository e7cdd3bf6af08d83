# SPDX-License-Identifier: LGPL-2.1-or-later
# Compiles everything, inside the build root (see image/in-buildroot). Each folder's own .mk adds to:
#
#   LIB_SRCS     sources of libanchorhold.a
#   PROGRAMS     names; each is supervisor/main/NAME.c linked with libanchorhold.a
#   UNIT_TESTS   names; each is tests/unit/NAME.c (cmocka), linked with libanchorhold.a
#   FUZZERS      names; each is tests/fuzz/NAME.c with its corpus in tests/fuzz/corpus/NAME/
#   BENCHES      names; each is tests/bench/NAME.c, linked with libanchorhold.a and run by tests/bench/bench.py
#   ALL          anything else that the image holds
#
# VARIANT=asan builds the same below build/asan with the sanitizers, VARIANT=fuzz with clang's as well and
# with what libFuzzer wants.

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

PKGS := libsystemd libbpf libnftnl libmnl sqlite3 libcurl jansson openssl libnghttp2 libllhttp libpsl libidn2 zlib
LDLIBS := $(shell pkg-config --libs $(PKGS)) -lldns -lpthread

WARNINGS := -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Wshadow -Wundef \
            -Wwrite-strings -Wmissing-prototypes -Wformat=2 -Wdate-time -Wvla
ifeq ($(CI)-$(VARIANT),true-plain) # what a sanitizer adds to the code makes gcc warn of paths that are not there
WARNINGS += -Werror
endif
CPPFLAGS := -D_GNU_SOURCE -Isupervisor -Iebpf -I$(O)/gen $(shell pkg-config --cflags $(PKGS))
CFLAGS := -std=gnu17 -O2 -g -fPIE -fstack-protector-strong -fstack-clash-protection -ftrivial-auto-var-init=zero \
          -fcf-protection -ffile-prefix-map=$(CURDIR)=. $(WARNINGS)
LDFLAGS := -pie -Wl,-z,relro,-z,now -Wl,--as-needed
ifeq ($(VARIANT),asan)
CFLAGS := -std=gnu17 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined $(WARNINGS)
LDFLAGS := -fsanitize=address,undefined
else ifeq ($(VARIANT),fuzz)
CC := $(CLANG)
CFLAGS := -std=gnu17 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,fuzzer-no-link \
          -fno-sanitize-recover=undefined $(WARNINGS) -Wno-format-nonliteral # unlike gcc, also of a va_list
LDFLAGS := -fsanitize=address,undefined
else
CPPFLAGS += -D_FORTIFY_SOURCE=3
endif

LIB_SRCS :=
PROGRAMS :=
UNIT_TESTS :=
FUZZERS :=
BENCHES :=
ALL :=
include $(sort $(wildcard supervisor/*/*.mk ebpf/*.mk tests/unit/*.mk tests/fuzz/*.mk))

LIB      := $(O)/libanchorhold.a
LIB_OBJS := $(LIB_SRCS:%.c=$(O)/%.o)
BIN      := $(PROGRAMS:%=$(O)/bin/%)
TESTBIN  := $(UNIT_TESTS:%=$(O)/tests/%)
FUZZBIN  := $(FUZZERS:%=$(O)/fuzz/%)
BENCHBIN := $(BENCHES:%=$(O)/bench/%)
MAINS    := $(PROGRAMS:%=$(O)/supervisor/main/%.o)

.PHONY: all shipped unit asan
all: shipped $(TESTBIN)

# What the image holds: a demo needs no more.
shipped: $(BIN) $(ALL)
	@:

# Other flags make other objects.
$(O)/%.o: %.c build.mk
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

.PHONY: benches
benches: $(BENCHBIN)
	@:

$(BENCHBIN): $(O)/bench/%: $(O)/tests/bench/%.o $(LIB)
	$(call msg,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $< $(LIB) $(LDLIBS) -o $@

# Unit tests run from the top of the tree, as many at once as there are jobs, when all is compiled; one that fails, or takes five minutes, stops
# nothing but fails the target; one that takes longer than eight seconds says that it is still there.
RUNS := $(TESTBIN:%=%.run)
.PHONY: $(RUNS)
$(RUNS): %.run: $(TESTBIN) $(ALL)
	@printf '  %-7s %s\n' TEST $*; rm -f $*.failed; \
		{ n=0; while sleep 8 >/dev/null 2>&1; do n=$$((n + 8)); printf '  %-7s %s (%d s)\n' … $* $$n; done; } & tick=$$!; \
		timeout 300 $* >$*.log 2>&1 || touch $*.failed; kill $$tick || :

unit: $(RUNS)
	@failed=; passed=0; for t in $(TESTBIN); do \
		if [ ! -e $$t.failed ]; then passed=$$((passed + $$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' $$t.log))); \
		else failed="$$failed $$t"; cat $$t.log; fi; \
	done; \
	if [ -n "$$failed" ]; then printf 'unit tests failed:%s\n' "$$failed" >&2; exit 1; fi; \
	printf '[  PASSED  ] %d test(s) of %d programs ($(VARIANT)).\n' $$passed $(words $(TESTBIN))

asan:
	@$(MAKE) -f build.mk VARIANT=asan unit

# Fuzzing. corpora: each target reads its corpus once, as a test; fuzz: it looks for new inputs for
# FUZZ_SECONDS, and keeps what it finds below build/fuzz, never in the tree. FUZZ=NAME picks one target. Left to itself, a minute each,
# and five for what stands between a guest (or a policy file) and every decision about egress.
.PHONY: corpora corpora-run fuzz fuzz-run
FUZZ_LONG    := fuzz-client-hello fuzz-dns-answer fuzz-dns-reply fuzz-http-head fuzz-policy
FUZZ_LIMITS  := -rss_limit_mb=2048 -timeout=10 -print_final_stats=0 -verbosity=0

$(FUZZBIN): $(O)/fuzz/%: $(O)/tests/fuzz/%.o $(LIB)
	$(call msg,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -fsanitize=fuzzer $< $(LIB) $(LDLIBS) -o $@

# The mains as well, so that clang has seen every file.
corpora-run: $(FUZZBIN) $(MAINS)
	@failed=; for f in $(FUZZERS); do \
		printf '  %-7s %s (%s inputs)\n' CORPUS $$f "$$(ls tests/fuzz/corpus/$$f | wc -l)"; \
		$(O)/fuzz/$$f $(FUZZ_LIMITS) -runs=0 -artifact_prefix=$(O)/fuzz/ tests/fuzz/corpus/$$f >$(O)/fuzz/$$f.log 2>&1 || \
			{ failed="$$failed $$f"; grep -m 1 -A 20 ERROR: $(O)/fuzz/$$f.log; echo "(the whole of it: $(O)/fuzz/$$f.log)"; }; \
	done; \
	if [ -n "$$failed" ]; then printf 'these fail on their corpus:%s\n' "$$failed" >&2; exit 1; fi

fuzz-run: $(if $(FUZZ),$(O)/fuzz/$(FUZZ),$(FUZZBIN))
	@for f in $(or $(FUZZ),$(FUZZERS)); do \
		case " $(FUZZ_LONG) " in *" $$f "*) seconds=300;; *) seconds=60;; esac; \
		seconds=$(or $(FUZZ_SECONDS),$$seconds); \
		printf '  %-7s %s, %s s\n' FUZZ $$f $$seconds; \
		mkdir -p $(O)/found/$$f $(O)/crashes; \
		$(O)/fuzz/$$f $(FUZZ_LIMITS) -max_total_time=$$seconds -artifact_prefix=$(O)/crashes/$$f- \
			$(O)/found/$$f tests/fuzz/corpus/$$f >$(O)/fuzz/$$f.log 2>&1 & pid=$$!; \
		while sleep 5; kill -0 $$pid 2>/dev/null; do printf '    … %s\n' "$$(tail -n 1 $(O)/fuzz/$$f.log | cut -c1-100)"; done; \
		wait $$pid || { tail -n 40 $(O)/fuzz/$$f.log; exit 1; }; \
		tail -n 1 $(O)/fuzz/$$f.log; \
	done

corpora fuzz:
	@$(MAKE) -f build.mk VARIANT=fuzz $@-run

-include $(LIB_OBJS:.o=.d) $(PROGRAMS:%=$(O)/supervisor/main/%.d) $(UNIT_TESTS:%=$(O)/tests/unit/%.d) $(FUZZERS:%=$(O)/tests/fuzz/%.d) $(BENCHES:%=$(O)/tests/bench/%.d)

# Lint. A file is looked at again when it or a header of it changed (its object is then newer).
.PHONY: lint lint-shell lint-includes lint-format lint-tidy lint-cppcheck fmt
SHELL_FILES   := $(sort $(shell grep -rlE '^\#!/bin/(ba)?sh|^\# shellcheck shell=' .ci image tests rootfs-overlay 2>/dev/null | grep -v '\.mk$$'))
FORMAT_FILES  := $(sort $(shell find supervisor ebpf tests/bench tests/fuzz tests/guest tests/unit -name '*.[ch]'))
# Not the unit tests: that cmocka's assertions do not return, the analyzer cannot know.
HOST_FILES    := $(sort $(LIB_SRCS) $(GUEST_SRCS) $(PROGRAMS:%=supervisor/main/%.c) $(BENCHES:%=tests/bench/%.c) tests/guest/rogue-init.c)
BPF_FILES     := $(BPF_PROGS:%=ebpf/%.bpf.c)
BPF_STAMPS    := $(BPF_PROGS:%=$(O)/lint/ebpf/%.tidy)
TIDY_STAMPS   := $(HOST_FILES:%.c=$(O)/lint/%.tidy)

lint: lint-shell lint-includes lint-format lint-cppcheck lint-tidy

lint-includes:
	$(call msg,INCL,"directions")
	$(Q)tests/includes

lint-shell:
	$(call msg,SHELL,"$(words $(SHELL_FILES)) scripts")
	$(Q)shellcheck -x $(SHELL_FILES)

lint-format:
	$(call msg,FORMAT,"$(words $(FORMAT_FILES)) files")
	$(Q)tests/format $(FORMAT_FILES)

fmt:
	$(Q)tests/format --fix $(FORMAT_FILES)

# memleak: it knows no cleanup attribute. nullPointerOutOfMemory: nor what a check of another value implies.
lint-cppcheck:
	$(call msg,CPPCHK,"$(words $(HOST_FILES) $(BPF_FILES)) files")
	@mkdir -p $(O)/cppcheck
	$(Q)cppcheck --quiet --error-exitcode=1 --enable=warning,portability --inline-suppr --std=c11 -j2 --cppcheck-build-dir=$(O)/cppcheck \
		--suppress=missingIncludeSystem --suppress=memleak --suppress=nullPointerOutOfMemory --suppress=normalCheckLevelMaxBranches -D_GNU_SOURCE -D__x86_64__ -Isupervisor -Iebpf \
		'-DSEC(name)=' '-D__uint(name, value)=int name' '-D__type(name, value)=value name' $(HOST_FILES) $(BPF_FILES)

lint-tidy: $(TIDY_STAMPS) $(BPF_STAMPS)

$(TIDY_STAMPS): $(O)/lint/%.tidy: $(O)/%.o .clang-tidy
	$(call msg,TIDY,$*.c)
	@mkdir -p $(@D)
	$(Q)clang-tidy --quiet $*.c -- $(CPPFLAGS) -std=gnu17 $(WARNINGS) -Wno-format-nonliteral 2>$@.log || { cat $@.log >&2; exit 1; }
	@touch $@

$(BPF_STAMPS): $(O)/lint/ebpf/%.tidy: $(O)/bpf/%.o .clang-tidy
	$(call msg,TIDY,ebpf/$*.bpf.c)
	@mkdir -p $(@D)
	$(Q)clang-tidy --quiet ebpf/$*.bpf.c -- -O2 -target bpf $(BPF_WARNINGS) $(BPF_INCLUDES) 2>$@.log || { cat $@.log >&2; exit 1; }
	@touch $@

# What nothing but lint compiles this way.
-include $(filter-out $(LIB_OBJS:.o=.d),$(filter $(O)/supervisor/guest/% $(O)/tests/guest/%,$(HOST_FILES:%.c=$(O)/%.d)))
