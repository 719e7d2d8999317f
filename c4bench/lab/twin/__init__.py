"""The lab's switches as machines that speak SONiC: reached over SSH, with SONiC's databases and commands.

It runs inside the lab's kernel only (`switch_os: sonic` in a topology file). redis-server, lldpd, sshd and sudo are the
real programs; what turns CONFIG_DB into the state of ports (`orchestrator`) and the commands are written from SONiC's
documentation. docs/reference/twin.md says which is which.
"""
