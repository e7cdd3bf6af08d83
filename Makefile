# SPDX-License-Identifier: LGPL-2.1-or-later
# What a person types. Everything is compiled by build.mk inside the build root; this file prepares
# that root, the image and the templates, and runs the demo and the tests.

SHELL := /bin/bash
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

CACHE ?= /var/cache/anchorhold
V     ?= 0
export CACHE V

INSIDE := KEEP_ENV="V CC" image/in-buildroot make --no-print-directory -j$(shell nproc) -f build.mk

.PHONY: help
help:   ## this text
	@awk -F':.*## ' '/^[a-z-]+:.*## /{ printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: programs
programs: deps ## compile the programs, the eBPF objects and the unit tests
	@$(INSIDE) all

.PHONY: unit
unit: deps ## unit tests, plain
	@$(INSIDE) unit

.PHONY: asan
asan: deps ## unit tests under ASan and UBSan
	@$(INSIDE) asan

.PHONY: deps
deps:   ## what the host needs (installs it with apt when root)
	@image/deps

.PHONY: clean
clean:  ## remove build/ (the cache outside the tree stays)
	rm -rf build

-include $(wildcard image/*.mk tests/*.mk)
