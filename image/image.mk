# SPDX-License-Identifier: LGPL-2.1-or-later
# The image: what boots, and what it boots in its microVMs.

.PHONY: image-root
image-root: deps ## everything that the image needs to boot
	@$(INSIDE) all
	@image/rootfs >/dev/null

.PHONY: boot
boot: image-root ## boot the image as a container and open a shell in it
	@image/boot --container --name dev
