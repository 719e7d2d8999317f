"""What is slow or stands still inside a host is told from what is so at its NICs, and named as a GPU's link."""

import msgspec
import pytest
from c4d_telemetry import MIX, remade, ticks
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.c4d.diagnosis import inside_host
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fabric import gpu_name, is_gpu
from c4bench.model.telemetry import Gpu
from tools.sim.model import SimFault, SimFaultKind, SimJob

HERE = 4
# Two hosts with four ranks each. A message to a rank of another host goes by the sender's NIC.
JOB = SimJob(8, MIX, ranks_per_host=HERE)


def links_of(rank, *, inside, side, factor):
    """A rank's link to the others of its host, or its NIC, is slower in one direction."""
    others = [peer for peer in range(JOB.ranks) if peer != rank and (peer // HERE == rank // HERE) == inside]
    pairs = [(rank, peer) if side == "tx" else (peer, rank) for peer in others]
    return tuple(SimFault(SimFaultKind.PATH_RATE, one, 3.0, factor=factor, peer=other) for one, other in pairs)


def as_gpus(window):
    """The window as ranks with a GPU each write it: ends inside a host are those of GPUs."""
    return remade(
        window,
        comms=tuple(msgspec.structs.replace(one, members=tuple(map(_member, one.members))) for one in window.comms),
        conns=tuple(map(_ends, window.conns)),
        arrivals=tuple(map(_ends, window.arrivals)),
    )


def _member(member):
    nics = tuple(f"{member.host}/{nic}" for nic in range(HERE))
    return msgspec.structs.replace(member, nics=nics, gpu=Gpu(member.rank % HERE, member.rank % HERE), seat=member.rank)


def _ends(record):
    (host, source), (other, destination) = record.source.split("/"), record.destination.split("/")
    if host != other:
        return record
    return msgspec.structs.replace(record, source=gpu_name(host, source), destination=gpu_name(host, destination))


def named(faults, duration_s=8.0):
    """What C4D says of the job with these faults."""
    judge, found = Detector(), []
    for tick in ticks(JOB, faults, duration_s):
        for window in tick.windows:
            judge.ingest_window(as_gpus(window))
        found += judge.evaluate(tick.time_s)
    assert judge.dropped == 0
    return found


def test_a_healthy_job_is_calm():
    """Links of GPUs and NICs that are as ever are no finding."""
    assert named(()) == []


@pytest.mark.parametrize("side", ["tx", *at_night("rx")])
def test_a_slow_link_of_a_gpu_is_named_as_such(side):
    """The GPU whose messages inside its host are slow is named with the side, and no NIC is."""
    (found,) = named(links_of(5, inside=True, side=side, factor=0.1))
    assert (found.syndrome, found.component) == (Syndrome.COMMUNICATION_SLOW, Component("gpu", "h1/gpu1", side))
    assert not any(one.kind == "nic" for one in found.suspects)
    assert found.probes == ()


def test_a_slow_nic_of_a_gpu_host_is_named_as_a_nic():
    """The NIC whose messages to other hosts are slow is named, and no GPU is; probes are between NICs alone."""
    (found,) = named(links_of(5, inside=False, side="tx", factor=0.1))
    assert (found.syndrome, found.component) == (Syndrome.COMMUNICATION_SLOW, Component("nic", "h1/1", "tx"))
    assert not any(one.kind == "gpu" for one in found.suspects)
    assert not any(is_gpu(name) for probe in found.probes for name in (probe.source, probe.destination))


def test_a_link_of_a_gpu_that_carries_nothing_is_a_hang():
    """What stands still between a GPU and others of its host is a hang of communication, with the GPU as its cause."""
    faults = (*links_of(5, inside=True, side="tx", factor=0.0), *links_of(5, inside=True, side="rx", factor=0.0))
    found = named(faults, 14.0)
    assert found[0].syndrome is Syndrome.COMMUNICATION_HANG
    assert found[0].component.kind == "gpu"
    assert found[0].component.name == "h1/gpu1"


def test_names_tell_inside_from_outside():
    """A GPU's link, and a path between two, are inside a host; a NIC, a path between NICs and a rank are not."""
    assert inside_host(Component("nic", "h0/gpu3"))
    assert inside_host(Component("path", "h0/gpu3>h0/gpu1"))
    assert not any(
        map(inside_host, (Component("nic", "h0/3"), Component("path", "h0/3>h1/3"), Component("rank", "j:3")))
    )
