"""What makes a graph of cables no fabric that a lab can be."""

from collections.abc import Iterator

from c4bench.inventory.cables import GraphError
from c4bench.inventory.graph_check import Limits, Problem
from c4bench.inventory.graph_check import check as check_graph
from c4bench.lab.topology import EcnMarking, Graph, subnet_numbers

NICS_AT_MOST = 8
SWITCHES_AT_MOST = 128
_WITHDRAW_MAX_S = 10.0
_ICMP_MAX = 1_000_000
# A queue that marks holds some packets, and no more than all that a port keeps (bytes).
_SHORTEST_QUEUE_BYTES, _LONGEST_QUEUE_BYTES = 10_000, 8 << 20
# A port drops packets that are larger than its burst (bytes).
_SMALLEST_BURST_BYTES, _LARGEST_BURST_BYTES = 4400, 1 << 20
_SUBNETS_AT_MOST = 254  # a byte of the address
_LIMITS = Limits(
    what="a lab",
    # An interface of a host is its name with up to three letters or digits more, and has at most 15 (IFNAMSIZ).
    name=r"[a-z][a-z0-9-]{0,11}",
    naming="use up to 12 lower-case letters, digits and hyphens",
    hosts=(2, 64),
    nics=NICS_AT_MOST,
    bond_ports=2,  # each leaf has a further address in a NIC's subnet
    switches=SWITCHES_AT_MOST,
    ports=254,  # a byte of the address
    trunks=4096,
    rates=("100mbit", "100gbit"),
    delay_s=1.0,
)


def check(graph: Graph) -> None:
    """Raises UsageError that names the key and the reason."""
    check_graph(graph, _LIMITS)
    for keys, problem in _problems(graph):
        raise GraphError(keys, problem)


def _marking_problems(ecn: EcnMarking) -> Iterator[Problem]:
    if not _SHORTEST_QUEUE_BYTES <= ecn.min_bytes < ecn.max_bytes <= _LONGEST_QUEUE_BYTES:
        bounds = f"{_SHORTEST_QUEUE_BYTES} <= min_bytes < max_bytes <= {_LONGEST_QUEUE_BYTES}"
        yield ("ecn", "min_bytes"), f"{ecn.min_bytes}, with max_bytes {ecn.max_bytes}; give {bounds}"
    if not 0 < ecn.probability <= 1:
        yield ("ecn", "probability"), f"{ecn.probability:g}; give more than 0, at most 1"


def _problems(graph: Graph) -> Iterator[Problem]:
    if not 0 <= graph.withdraw_s <= _WITHDRAW_MAX_S:
        yield ("withdraw_s",), f"{graph.withdraw_s:g}; give 0 to {_WITHDRAW_MAX_S:g} seconds"
    for key in ("ratelimit_ms", "msgs_per_sec", "msgs_burst"):
        if not 0 <= (value := getattr(graph.icmp, key)) <= _ICMP_MAX:
            yield ("icmp", key), f"{value}; give 0 to {_ICMP_MAX}"
    if not _SMALLEST_BURST_BYTES <= graph.burst_bytes <= _LARGEST_BURST_BYTES:
        yield ("burst_bytes",), f"{graph.burst_bytes}; give {_SMALLEST_BURST_BYTES} to {_LARGEST_BURST_BYTES}"
    yield from _marking_problems(graph.ecn) if graph.ecn else ()
    if (subnets := len(subnet_numbers(graph))) > _SUBNETS_AT_MOST:
        yield ("links",), f"{subnets} edge switches and pairs of them with bonds; give at most {_SUBNETS_AT_MOST}"
    ported = [port.position for port in graph.host_ports if port.port or port.nic >= 0]
    ported += [trunk.position for trunk in graph.trunks if trunk.a_port or trunk.b_port]
    for position in ported:
        yield ("links", position, "between"), "a lab numbers ports itself; name the host and the switch only"
