# SPDX-License-Identifier: LGPL-2.1-or-later
# Tests on the booted image. They start from an empty environment, under the system's own Python.

T ?=
TEST_FILES := $(if $(T),$(sort $(foreach f,$(wildcard tests/integration/test_*.py tests/adversary/test_*.py),$(if $(findstring $(T),$(notdir $f)),$f))),tests/integration $(wildcard tests/adversary))

# Three processes side by side, each with a boot and files of its own (tests/integration/beside.py): much of the time is waiting, and one of them has
# what hardly does anything else. A process that dies is not made anew: the session would wait for its tests for ever.
BESIDE := $(if $(T),,-n 3 --dist loadfile --max-worker-restart=0)

# AGAIN=1, as CI has it: a few that fail run a second time, by themselves, which decides (tests/again).
AGAIN ?=

# Before anything is built: does a file's name have the word, is there such an agent?
.PHONY: some-tests some-vm-tests some-soak-tests known-agent
some-tests:
	@[ -n "$(strip $(TEST_FILES))" ] || { echo 'no test file has "$(T)" in its name' >&2; exit 1; }
VM_TEST_FILES := $(sort $(wildcard tests/vm/test_vm_*$(T)*.py))
SOAK_TEST_FILES := $(sort $(wildcard tests/vm/test_soak_*$(T)*.py))
some-vm-tests:
	@[ -n "$(VM_TEST_FILES)" ] || { echo 'no test file of the virtual machine has "$(T)" in its name' >&2; exit 1; }
some-soak-tests:
	@[ -n "$(SOAK_TEST_FILES)" ] || { echo 'no test file of the soak has "$(T)" in its name' >&2; exit 1; }
AGENT ?= pi
AGENTS := $(notdir $(patsubst %/,%,$(wildcard image/agents/*/)))
known-agent:
	@[ -n "$(and $(filter 1,$(words $(AGENT))),$(filter $(AGENT),$(AGENTS)))" ] || { echo 'AGENT=$(AGENT): there are $(AGENTS)' >&2; exit 1; }

# Asked first: who hears that it cannot boot here wants to hear so before everything is built.
.PHONY: kernel
kernel:
	@image/kernel

.PHONY: integration
integration: some-tests kernel image-root templates ## integration tests on the booted image
	@$(if $(filter tests/integration %/test_credential_clients.py,$(TEST_FILES)),image/client-root >/dev/null)
	@$(if $(filter 1,$(AGAIN)),tests/again build/integration/failed) \
		env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CACHE="$(CACHE)" PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 -m pytest -p no:cacheprovider --color=no -q --durations=5 --tb=short $(if $(filter 1,$(AGAIN)),--) $(BESIDE) $(TEST_FILES)

.PHONY: check-vm
check-vm: some-vm-tests image ## the image as a full virtual machine: what is read-only, KVM, limits; upgrade, and back from an image that does not work
	@env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CACHE="$(CACHE)" PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 -m pytest -p no:cacheprovider --color=no -q --durations=10 --tb=short $(VM_TEST_FILES)

.PHONY: soak
soak: some-soak-tests image ## by hand, an hour: ten power cuts, hosts that hang, a loader that counts boots (T=power|hang|efi: one of them)
	@env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CACHE="$(CACHE)" VM_SEED="$(VM_SEED)" PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 -m pytest -p no:cacheprovider --color=no -q --durations=10 --tb=short $(SOAK_TEST_FILES)

.PHONY: demo
demo: known-agent kernel image-root templates ## one real agent fixes one real repository in one microVM (AGENT=pi, claude or codex; KEEP=1: the host stays up until Enter)
	@env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="$(TERM)" NO_COLOR="$(NO_COLOR)" CACHE="$(CACHE)" PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 tests/demo/demo.py --agent "$(AGENT)" $(if $(KEEP),--keep)

.PHONY: bench
bench: kernel image-root templates ## figures of one run: cold start, where its time goes, memory; of policy decisions; of its proxies beside squid and mitmproxy (ONLY=policy|connects|egress|proxies|start: one part)
	@$(INSIDE) benches
	@env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CACHE="$(CACHE)" PYTHONDONTWRITEBYTECODE=1 \
		/usr/bin/python3 tests/bench/bench.py $(if $(ONLY),--only $(ONLY))
