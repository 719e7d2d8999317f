"""Probes count a reply only if it answers one of this train, from the peer, unchanged."""

import os
import socket
import struct

import pytest
from fakes import NOQUEUE, target

from c4bench.errors import UnhealthyError
from c4bench.inject.witness import echo
from c4bench.inject.witness.echo import Echoes, EchoReply, Prober, checksum

PEER, OURS = "10.1.1.254", 4242
IP_HEADER = bytes([0x45]) + bytes(19)


def packet(kind=0, identifier=OURS, number=101, padding=bytes(8)):
    """An ICMP message as a raw socket receives it (RFC 792), with our number behind the sequence number."""
    return IP_HEADER + struct.pack("!BBHHHI", kind, 0, 0, identifier, number & 0xFFFF, number) + padding


class Socket:
    """Has received these messages, at 7.5 s on the host's clock."""

    def __init__(self, *received):
        self._received = list(received)

    def recvmsg(self, *_):
        if not self._received:
            raise BlockingIOError
        data, peer = self._received.pop(0)
        return data, [(1, 35, struct.pack("=qq", 7, 500_000_000))], 0, (peer, 0)


def replies(*received):
    receiver = echo._ReplyReceiver(Socket(*received), PEER, OURS, first=100)
    receiver.sent_s[:] = [5.0, 6.0]
    receiver._read_socket()
    return receiver.replies


def test_a_reply_has_its_number_and_both_times():
    """The second probe of the train was sent at 6 s and answered at 7.5 s."""
    assert replies((packet(number=101), PEER)) == [EchoReply(1, 6.0, 7.5)]


@pytest.mark.parametrize(
    ("data", "peer"),
    [
        (packet(), "10.1.1.7"),
        (packet(identifier=OURS + 1), PEER),
        (packet(kind=8), PEER),
        (packet(kind=3), PEER),
        (packet(number=99), PEER),
        (packet(number=102), PEER),
        (packet(padding=bytes(7) + b"\x01"), PEER),
    ],
    ids=["peer", "identifier", "request", "unreachable", "train before", "not sent yet", "changed"],
)
def test_what_is_no_reply_to_this_train_is_not_counted(data, peer):
    """Messages of others, of an earlier train, and with other contents do not stand for a probe that came back."""
    assert replies((data, peer)) == []
    assert replies((data, peer), (packet(number=100), PEER)) == [EchoReply(0, 5.0, 7.5)]


def test_a_probe_answered_twice_is_lost_no_less():
    """Two replies to one probe do not make up for the one that is missing; the first that is missing gives the time."""
    twice = Echoes([1.0, 2.0, 3.0], [EchoReply(0, 1.0, 1.1), EchoReply(0, 1.0, 1.2)])
    assert (twice.lost, twice.first_lost_s) == (2, 2.0)
    whole = Echoes([1.0], [EchoReply(0, 1.0, 1.1)])
    assert (whole.lost, whole.first_lost_s) == (0, None)


def test_the_checksum_is_that_of_the_standard():
    """RFC 1071, section 3: its example bytes sum to ddf2."""
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2
    assert checksum(bytes.fromhex("ffff0001")) == 0xFFFF - 0x0001


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"address": '[{"ifname": "h5n0", "mtu": 4200, "addr_info": []}]'}, "it has no IPv4 address"),
        ({"route": "", "neighbour": ""}, "it has no neighbour or gateway"),
    ],
)
def test_an_interface_that_nobody_can_answer_is_not_probed(sections, words):
    """Without an address of its own or a peer there is nothing to probe, and the error says which is missing."""
    with pytest.raises(UnhealthyError, match=rf"h5/0 cannot be probed: {words}"):
        Prober(target(NOQUEUE, **sections))


def test_a_train_without_replies_is_lost_and_ends_in_time(monkeypatch):
    """Every probe of the train has its own number, and the next train goes on from there."""
    sent, classes = [], []
    reader, writer = os.pipe()

    class Silent:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def fileno(self):
            return reader

        def setsockopt(self, level, option, value):
            classes.append((level, option, value))

        def sendto(self, data, _):
            sent.append(data)
            assert checksum(data[:12]) == 0  # with its own checksum in it a header sums to nothing

    monkeypatch.setattr(echo, "_open_socket", lambda *_: Silent())
    monkeypatch.setattr(echo, "_REPLY_TIMEOUT_S", 0.01)
    prober = Prober(target())
    assert prober.train(3, 64).lost == 3
    assert prober.train(2, 64).lost == 2
    assert classes == [(socket.IPPROTO_IP, socket.IP_TOS, 0)] * 2
    os.close(reader)
    os.close(writer)
    assert [struct.unpack_from("!I", data, 8)[0] for data in sent] == [0, 1, 2, 3, 4]
    assert [len(data) for data in sent] == [64 - 20] * 5
