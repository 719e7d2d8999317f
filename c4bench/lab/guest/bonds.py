"""A NIC whose ports are cabled to two switches: a Linux bond of its interfaces.

The bond hashes addresses and UDP ports, and so a flow's source port chooses the port that it leaves by. It is static:
the two switches share the gateway's address and MAC address, as with MLAG, and each delivers by its own cable. LACP
would only add that both sides agree on the ports first.
"""

from c4bench.model.fabric import Nic

_MIIMON_MS = 100  # how often a bond looks for ports that have lost their link


def commands(nic: Nic, mac: str, mtu_bytes: int) -> list[str]:
    """The `ip` commands that make this bond of interfaces that are there; `mac` is what its ports get too."""
    mode = f"mode balance-xor xmit_hash_policy layer3+4 miimon {_MIIMON_MS}"
    return [
        f"link add {nic.netdev} mtu {mtu_bytes} address {mac} type bond {mode}",
        *(f"link set {port} {state}" for port in nic.bond for state in (f"master {nic.netdev}", "up")),
    ]
