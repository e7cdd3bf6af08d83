# SPDX-License-Identifier: LGPL-2.1-or-later
# anchor-guest: one static program, the microVM's PID 1. Of the host's code only the channel codec is in it.
GUEST_SRCS := supervisor/guest/guest-boot.c supervisor/guest/guest-file.c supervisor/guest/guest-log.c \
              supervisor/guest/guest-main.c supervisor/guest/guest-net.c supervisor/guest/guest-process.c supervisor/guest/guest-session.c \
              supervisor/guest/guest-unicast.c supervisor/guest/java-store.c supervisor/vmm/channel.c
GUEST_OBJS := $(GUEST_SRCS:%.c=$(O)/guest/%.o)

# Without the sanitizers also in their variant: it runs where their runtime is not.
GUEST_CFLAGS := -std=gnu17 -O2 -g -fno-pie -fstack-protector-strong -ffile-prefix-map=$(CURDIR)=. $(WARNINGS)

$(GUEST_OBJS): $(O)/guest/%.o: %.c supervisor/guest/guest.mk
	$(call msg,CC,"$< (guest)")
	@mkdir -p $(@D)
	$(Q)$(CC) -D_GNU_SOURCE -Isupervisor $(GUEST_CFLAGS) -MMD -MP -c $< -o $@

$(O)/guest/anchor-guest: $(GUEST_OBJS)
	$(call msg,LINK,$@)
	$(Q)$(CC) -static -no-pie -s $(GUEST_OBJS) -ljansson -o $@

ALL += $(O)/guest/anchor-guest

# In the library for its tests alone: all of it but main().
LIB_SRCS += $(filter supervisor/guest/%,$(filter-out %/guest-main.c,$(GUEST_SRCS)))
UNIT_TESTS += test-guest-file test-guest-net test-guest-process test-guest-session test-java-store
-include $(GUEST_OBJS:.o=.d)

# A guest that breaks the rules, for test templates.
ROGUE_OBJS := $(O)/guest/tests/guest/rogue-init.o $(O)/guest/supervisor/vmm/channel.o

$(O)/guest/tests/guest/rogue-init.o: $(O)/guest/%.o: %.c supervisor/guest/guest.mk
	$(call msg,CC,"$< (guest)")
	@mkdir -p $(@D)
	$(Q)$(CC) -D_GNU_SOURCE -Isupervisor $(GUEST_CFLAGS) -MMD -MP -c $< -o $@

$(O)/guest/rogue-init: $(ROGUE_OBJS)
	$(call msg,LINK,$@)
	$(Q)$(CC) -static -no-pie -s $(ROGUE_OBJS) -o $@

ALL += $(O)/guest/rogue-init
