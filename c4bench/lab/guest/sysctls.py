"""The kernel's network settings of the lab's switches and hosts, by their path below /proc/sys/net."""

from c4bench.lab.topology import IcmpLimits, Switch

NO_IPV6 = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}
_SWITCH = {
    **NO_IPV6,
    "ipv4/ip_forward": "1",
    "ipv4/fib_multipath_hash_policy": "3",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
}
# A day: no token bucket of the kernel ever fills so far.
_NO_ANSWERS_MS = 86_400_000
HOST = {
    **NO_IPV6,
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/accept_local": "1",
    "ipv4/conf/default/accept_local": "1",
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/conf/all/arp_announce": "2",
}
# The kernel keeps one hash key for all namespaces. With the same fields in all tiers a spine would see only flows that
# already agree on the leaf's hash, and choices would correlate; so the tiers hash different fields.
_HASH_FIELDS = (
    "0x0037",  # edge switches: 5-tuple
    "0x0035",  # the next tier: without the destination address
    "0x0036",  # without the source address
    "0x0034",  # all others: protocol and ports
)


def of_switch(switch: Switch, limits: IcmpLimits) -> dict[str, str]:
    """A switch's settings: it forwards, and hashes the fields of its tier."""
    fields = _HASH_FIELDS[min(switch.tier, len(_HASH_FIELDS)) - 1]
    return _SWITCH | answers(limits) | icmp(limits) | {"ipv4/fib_multipath_hash_fields": fields}


def icmp(limits: IcmpLimits) -> dict[str, str]:
    """A switch's settings for these limits."""
    return {
        "ipv4/icmp_ratelimit": str(limits.ratelimit_ms if limits.answers else _NO_ANSWERS_MS),
        "ipv4/icmp_msgs_per_sec": str(limits.msgs_per_sec),
        "ipv4/icmp_msgs_burst": str(limits.msgs_burst),
    }


def answers(limits: IcmpLimits) -> dict[str, str]:
    """How a switch shows which interface a probe arrived on: it answers with that interface's address, or names it.

    By default Linux answers with the address of the interface that it answers by, which another link may have where
    there are several ways back.
    """
    how = "icmp_errors_extension_mask" if limits.interfaces else "icmp_errors_use_inbound_ifaddr"
    return {f"ipv4/{how}": "1"}
