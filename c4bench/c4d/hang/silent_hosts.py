"""Silent hosts: neither their agent nor their ranks send telemetry."""

from collections.abc import Iterable

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.model.diagnosis import Cause, Component, Syndrome

# At most one in this many hosts may be silent at once; else the network to the master is suspect.
_SILENT_SHARE = 4


def silent_hosts(hosts: Iterable[str], clocks: HostClocks, since_s: float) -> set[str]:
    """Those of `hosts` not heard of since `since_s` (master's clock).

    Empty when many are silent: then the network to the master is broken, and nothing is known of them.
    """
    every = set(hosts)
    silent = {host for host in every if clocks.last_heard_s(host) < since_s}
    return silent if len(silent) <= max(1, len(every) // _SILENT_SHARE) else set()


def silent_host_finding(host: str, clocks: HostClocks, since_s: float, observed_s: float) -> Finding:
    """The finding on a host that reports nothing while its ranks are awaited."""
    heard_s = clocks.last_heard_s(host)
    return Finding(
        Syndrome.COMMUNICATION_HANG,
        Cause.HOST_SILENT,
        Component("host", host),
        since_s,
        confidence(Cause.HOST_SILENT, "host"),
        (f"no telemetry from {host} since {heard_s:.3f} s while its ranks are awaited",),
        f"a window from {host}",
        {"silent_s": observed_s - heard_s},
    )
