# SPDX-License-Identifier: LGPL-2.1-or-later
# The eBPF programs: one object each, linked into fence.bpf.o and the skeleton that net/bpf-load.c uses.

BPF_PROGS    := fence-connect fence-create fence-floor fence-packet fence-socket fence-unix fence-uplink
BPF_INCLUDES := -Iebpf -idirafter /usr/include/$(shell gcc -dumpmachine)
BPF_WARNINGS := -Wall -Wextra -Wno-unused-parameter $(if $(filter true,$(CI)),-Werror)

ALL += $(O)/bpf/fence.bpf.o

$(O)/bpf/%.o: ebpf/%.bpf.c ebpf/ebpf.mk $(wildcard ebpf/*.bpf.h)
	$(call msg,BPF,$<)
	@mkdir -p $(@D)
	$(Q)$(CLANG) -g -O2 -mcpu=v3 -target bpf -ffile-prefix-map=$(CURDIR)=. $(BPF_WARNINGS) $(BPF_INCLUDES) -c $< -o $@

$(O)/bpf/fence.bpf.o: $(BPF_PROGS:%=$(O)/bpf/%.o)
	$(call msg,BPFLINK,$@)
	$(Q)bpftool gen object $@ $^

$(O)/gen/fence.skel.h: $(O)/bpf/fence.bpf.o
	$(call msg,SKEL,$@)
	@mkdir -p $(@D)
	$(Q)bpftool gen skeleton $< name fence >$@

$(O)/supervisor/net/bpf-load.o: $(O)/gen/fence.skel.h
