# SPDX-License-Identifier: LGPL-2.1-or-later
# What a person types. Everything is compiled by build.mk inside the build root; this file prepares
# that root, the image and the templates, and runs the demo and the tests.

SHELL := /bin/bash
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

CACHE ?= /var/cache/anchorhold
V     ?= 0
export CACHE V CI FUZZ FUZZ_SECONDS

INSIDE := KEEP_ENV="V CC CI FUZZ FUZZ_SECONDS" image/in-buildroot make --no-print-directory -j$(shell nproc) -f build.mk

.PHONY: help
help:   ## this text
	@awk -F':.*## ' '/^[a-z-]+:.*## /{ printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
ifdef T
check: integration ## unit tests (plain, and with sanitizers), fuzz corpora, integration tests (T=WORD: only the last, in files whose name contains WORD; AGAIN=1: up to 12 that fail there run once more, alone)
else
check: kernel
	@tests/steps unit asan corpora image-root templates bootable integration
endif

.PHONY: lint
lint: deps lint-python ## shellcheck, directions of includes, clang-format, cppcheck, clang-tidy; every test file loads and finds its fixtures
	@$(INSIDE) lint

# A name that a test file imports and nobody defines stops the whole suite, after everything was built: found here, in a second.
.PHONY: lint-python
lint-python: deps
	@plan=$$(/usr/bin/python3 -B -m pytest -p no:cacheprovider --color=no -q --tb=short --setup-plan tests 2>&1) || { printf '%s\n' "$$plan" >&2; exit 1; }

.PHONY: fmt
fmt: deps ## lay out the C sources as lint wants them
	@$(INSIDE) fmt

.PHONY: programs
programs: deps ## compile the programs, the eBPF objects and the unit tests
	@$(INSIDE) all

.PHONY: shipped
shipped: deps
	@$(INSIDE) shipped

.PHONY: unit
unit: deps ## unit tests, plain
	@$(INSIDE) unit

.PHONY: asan
asan: deps ## unit tests under ASan and UBSan
	@$(INSIDE) asan

.PHONY: corpora
corpora: deps ## each fuzz target reads its corpus once (built with clang and the sanitizers)
	@$(INSIDE) corpora

.PHONY: fuzz
fuzz: deps ## look for new inputs, five minutes where a guest is parsed for its egress and a minute elsewhere (FUZZ_SECONDS=N, FUZZ=NAME)
	@$(INSIDE) fuzz

.PHONY: deps
deps:   ## what the host needs (installs it with apt when root)
	@image/deps

.PHONY: clean
clean:  ## remove build/ (the cache outside the tree stays)
	rm -rf build

-include $(wildcard image/*.mk tests/*.mk)
