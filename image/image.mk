# SPDX-License-Identifier: LGPL-2.1-or-later
# The image: what boots, and what it boots in its microVMs.

.PHONY: trees
trees: deps ## what the image and its guests have from Debian and npm, and nothing of ours (the targets below make what is missing of it)
	@image/rootfs >/dev/null
	@image/guest-kernel >/dev/null
	@image/guest-root >/dev/null
	@for agent in image/agents/*/; do image/agent "$$(basename "$$agent")" >/dev/null || exit 1; done
	@image/bootable >/dev/null

.PHONY: image-root
image-root: shipped ## everything that the image needs to boot
	@image/rootfs >/dev/null
	@image/lockfiles check buildroot rootfs

.PHONY: bootable
bootable: ## kernel, initramfs and ostree, which the image needs to boot from a disk
	@image/bootable >/dev/null
	@image/lockfiles check bootable

.PHONY: templates
templates: shipped ## guest kernel, initrd, root and agents
	@image/template
	@image/lockfiles check template-base npm

.PHONY: image
image: image-root templates bootable ## the image as an OCI archive, signed, with its SBOM (refuses packages that are not in image/lock)
	@image/oci

.PHONY: image-reproduce
image-reproduce: ## make the image twice, from scratch the second time and elsewhere, and compare the digests
	@image/reproduce

.PHONY: image-derived
image-derived: image-root templates ## the same payload on another bootc base: BASE=REPOSITORY@sha256:… (needs podman or buildah)
	@image/derived "$(BASE)"

.PHONY: boot
boot: image-root templates ## boot the image as a container and open a shell in it
	@image/boot --container --name dev

.PHONY: relock
relock: image-root templates bootable ## take the packages that are there now into image/lock
	@image/efi-root >/dev/null
	@image/lockfiles write
