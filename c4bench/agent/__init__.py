"""The host daemon (C4a in the C4 paper): starts ranks, reads their telemetry, sends windows to the master, and probes.

It is unprivileged and changes nothing on the host; only `inject` breaks things.
"""
