"""The embedded lab: SoftRoCE hosts and a leaf-spine fabric inside a user-mode Linux kernel, in virtual time.

`machine` runs on the user's machine: it builds, boots and watches the kernel, and passes on output and exit code.
`guest` runs inside the booted kernel: mounts, fabric, hosts. Both use `topology`. The rest of c4bench sees a lab as an
inventory of hosts that are reached over SSH.
"""
