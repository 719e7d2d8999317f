"""The embedded lab: SoftRoCE hosts and a leaf-spine fabric inside a user-mode Linux kernel, in virtual time.

`machine` runs on the user's machine (build the kernel, boot it, carry output and exit code out, watch it). `guest` runs
inside the booted kernel (mounts, fabric, hosts). `topology` is what both agree on. Nothing above this room knows how it
works inside: a lab looks like an inventory of hosts reached over SSH.
"""
