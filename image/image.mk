# SPDX-License-Identifier: LGPL-2.1-or-later
# The image: what boots, and what it boots in its microVMs.

.PHONY: image-root
image-root: programs ## everything that the image needs to boot
	@image/rootfs >/dev/null
	@image/lockfiles check buildroot rootfs

.PHONY: templates
templates: programs ## guest kernel, initrd, root and agents
	@image/template
	@image/lockfiles check template-base npm

.PHONY: boot
boot: image-root templates ## boot the image as a container and open a shell in it
	@image/boot --container --name dev

.PHONY: relock
relock: programs image-root templates ## take the packages that are there now into image/lock
	@image/lockfiles write
