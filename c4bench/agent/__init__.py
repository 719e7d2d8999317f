"""The host daemon (C4a in the C4 paper): starts ranks, reads their telemetry rings, ships windows, answers probes.

Unprivileged by design: it opens no raw socket and changes nothing on the host; breaking things is `inject`'s business.
"""
