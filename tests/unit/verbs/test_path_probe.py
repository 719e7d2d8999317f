"""Path probes against the loopback interface and recorded answers."""

import socket
import struct
import time

import pytest

from c4bench.errors import C4Error
from c4bench.model.fabric import Nic
from c4bench.verbs import probe
from c4bench.verbs.probe import Answer, parse_answer, probe_paths, send_bursts

LOOPBACK = Nic("h0", 0, "rxe0", "lo", "127.0.0.1", 1e10)


def error(origin, kind, code, offender):
    head = struct.pack("=IBBBBII", 113, origin, kind, code, 0, 0, 0)
    if ":" in offender:
        return (
            head + struct.pack("=HHI", socket.AF_INET6, 0, 0) + socket.inet_pton(socket.AF_INET6, offender) + bytes(4)
        )
    return head + struct.pack("=HH", socket.AF_INET, 0) + socket.inet_aton(offender) + bytes(8)


def test_answers_tell_expiry_from_refusal():
    """Time Exceeded continues a trace, Unreachable ends it, and a local error is no answer."""
    assert parse_answer(4, error(2, 11, 0, "172.16.0.2")) == Answer("172.16.0.2", expired=True)
    assert parse_answer(4, error(2, 3, 1, "172.16.0.2")) == Answer("172.16.0.2", expired=False)
    assert parse_answer(6, error(3, 3, 0, "fd00::2")) == Answer("fd00::2", expired=True)
    assert parse_answer(4, error(1, 0, 0, "0.0.0.0")) is None


def test_a_closed_destination_ends_every_trace():
    """On the loopback interface the destination refuses the probe at the first hop, for each of many ports."""
    ports = range(50000, 50100)
    assert probe_paths(LOOPBACK, "127.0.0.1", ports, 3) == dict.fromkeys(ports, ("127.0.0.1",))


def test_silence_ends_a_trace_with_an_empty_hop():
    """A destination that does not answer gives an empty hop after the timeout."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        assert probe_paths(LOOPBACK, "127.0.0.1", [50000], 3, timeout_s=0.05) == {50000: ("",)}


def test_a_lost_probe_is_repeated(monkeypatch):
    """A hop whose first answer is lost is found by the second probe."""
    lost = []

    def lossy(sock, destination, read=probe._read):
        answer = read(sock, destination)
        if answer is not None and sock.getsockname()[1] not in lost:
            lost.append(sock.getsockname()[1])
            return None
        return answer

    monkeypatch.setattr(probe, "_read", lossy)
    assert probe_paths(LOOPBACK, "127.0.0.1", [50000, 50001], 3, timeout_s=0.4) == dict.fromkeys(
        (50000, 50001), ("127.0.0.1",)
    )
    assert sorted(lost) == [50000, 50001]


def test_a_port_in_use_is_reported():
    """A source port that cannot be bound is an error that names the NIC and the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 50001))
        with pytest.raises(C4Error, match=r"h0/0 .*port 50001"):
            probe_paths(LOOPBACK, "127.0.0.1", [50000, 50001], 3)


def test_silent_hops_can_be_passed():
    """With `silences=2` a trace continues one hop past the first silent one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        assert probe_paths(LOOPBACK, "127.0.0.1", [50000], 5, timeout_s=0.05, silences=2) == {50000: ("", "")}


def test_bursts_are_as_many_as_asked_for_and_no_faster():
    """So many packets come from each port, and they take as long as the rate says."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 4791))
        began = time.monotonic()
        send_bursts(LOOPBACK, "127.0.0.1", [(50000, 64, 30), (50001, 64, 20)], rate_pps=1000.0)
        assert time.monotonic() - began > 0.04
        ports = [sink.recvfrom(100)[1][1] for _ in range(50)]
    assert (ports.count(50000), ports.count(50001)) == (30, 20)
