"""All packets of a fabric are in the traffic class that the inventory states, by what leaves both ends' interfaces."""

import pytest

from c4bench.verbs import probe
from c4bench.wire.probes import Burst
from c4bench.workload.jobs import job

# Opcodes of reliable connections (InfiniBand Architecture Specification, volume 1, 9.2.1).
FIRST, MIDDLE, LAST_WITH_IMMEDIATE, ONLY, ONLY_WITH_IMMEDIATE, ACKNOWLEDGE = 6, 7, 9, 10, 11, 17
DATA, CREDIT = {FIRST, MIDDLE, LAST_WITH_IMMEDIATE}, {ONLY_WITH_IMMEDIATE}
# The first byte of a probe is where other packets have their opcode.
PROBE = probe._MARK[0]
ECN_BITS = 2  # below the DSCP; where switches mark, packets say that they may be
SIZE_BYTES = 64 << 10


@pytest.fixture(scope="module", autouse=True)
def _stated(hosts):
    """Skips before anything is opened, so that scenarios after these run as if these did not exist."""
    if not all(nic.dscp for host in ends(hosts) for nic in host.nics[:1]):
        pytest.skip("no-class: the inventory states no DSCP (c4.dscp)")


@pytest.fixture
def sent(consoles, refused):
    """The traffic classes of what each end's NIC has sent since the last call, by opcode."""

    def look():
        return [{int(opcode): classes for opcode, classes in end("traffic_classes").items()} for end in consoles]

    try:
        look()
    except refused as error:
        pytest.skip(f"no-capture: {error}")
    return look


@pytest.fixture
def holds(consoles, sent):
    """Both ends have sent packets with all these opcodes, and nothing in another class than the inventory's."""

    def check(opcodes):
        seen = sent()
        if not any(seen):
            pytest.skip("no-capture: packets of these NICs are not seen on their network interfaces")
        assert all(opcodes <= set(end) for end in seen), seen
        for console, end in zip(consoles, seen, strict=True):
            assert {
                opcode: classes
                for opcode, classes in end.items()
                if {one >> ECN_BITS for one in classes} != {console.nic.dscp}
            } == {}

    return check


def test_data_credit_and_acknowledgements_are_in_the_class(holds, cluster, rdma_hosts):
    """Messages of an all-reduce, the receivers' grants and all acknowledgements have the inventory's DSCP."""
    spec = job("class-ring", "bandwidth", ends(rdma_hosts), seed=1, size_bytes=SIZE_BYTES, paths="ecmp", operations=1)
    cluster.results(cluster.start(spec), "all_reduce", 60.0)
    cluster.stop(spec.id)
    holds(DATA | CREDIT | {ACKNOWLEDGE})


def test_pre_run_survey_is_in_the_class(holds, cluster, rdma_hosts):
    """Small and large writes between pairs of NICs have the inventory's DSCP, in both directions."""
    nics = [host.nics[0].name for host in ends(rdma_hosts)]
    steps = [[{"source": source, "destination": far}] for source, far in (nics, nics[::-1])]
    sizes = {"size_bytes": SIZE_BYTES, "messages": 1, "probes": 2}
    spec = job("class-pairs", "pairs", ends(rdma_hosts), seed=1, steps=steps, **sizes)
    cluster.results(cluster.start(spec), "pairs", 60.0)
    cluster.stop(spec.id)
    holds({FIRST, MIDDLE, ONLY, ACKNOWLEDGE})


def test_probes_of_paths_are_in_the_class(holds, cluster):
    """Probes with a limited TTL, by which C4P learns paths, have the DSCP of the data."""
    cluster.learn_paths(range(50001, 50005))
    holds({PROBE})


def test_counted_packets_are_in_the_class(holds, cluster, rdma_hosts):
    """Packets that switches are to count have the DSCP of the data."""
    near, far = (host.nics[0] for host in ends(rdma_hosts))
    cluster.send_bursts({pair: [Burst(50001, 1, 4)] for pair in ((near, far), (far, near))})
    holds({PROBE})


def ends(hosts):
    """The hosts that the consoles are on."""
    return [hosts[0], hosts[-1]]
