"""A lab like a rack: switches that speak SONiC over SSH, and hosts whose NICs are like ConnectX (`connectx`).

It runs inside the lab's kernel only (`switch_os: sonic`, `nics: connectx-6` in a topology file). redis-server, lldpd,
sshd and sudo are the real programs; what turns CONFIG_DB into the state of ports (`orchestrator`) and the commands are
written from SONiC's documentation. docs/reference/twin.md says which is which.
"""
