"""Files, requests and messages of others: whatever is in them, they are read, or refused in one line."""

import asyncio
import json
import os
import random
import tracemalloc

import msgspec
import pytest

from c4bench.agent import config
from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.c4p.controller import PathController
from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.control.jobs import Job
from c4bench.control.window_parts import WindowParts
from c4bench.errors import C4Error
from c4bench.inject import __main__ as injector
from c4bench.inject import catalogue, permitted
from c4bench.inject.actions import Delete, Plan
from c4bench.inject.journal import Journal
from c4bench.inject.journal_entries import Entry
from c4bench.inject.permitted import Permitted, PermittedHost
from c4bench.inventory import load as load_inventory
from c4bench.lab.topology_file import DIRECTORY
from c4bench.lab.topology_file import load as load_topology
from c4bench.model.fabric import Flow, Nic
from c4bench.model.fault import FaultRequest, Lease, TargetKind
from c4bench.model.measurement import Clock, Outcome
from c4bench.model.numbering import window_of
from c4bench.model.recording import Evaluated
from c4bench.model.telemetry import (
    ArrivalRecord,
    CommRecord,
    ConnRecord,
    Member,
    NicRecord,
    OpRecord,
    RankRecord,
)
from c4bench.record import Ledger
from c4bench.record.telemetry import read_telemetry, to_lines
from c4bench.resources import resource
from c4bench.wire.channel import ChannelClosed
from c4bench.wire.messages import Call, Empty, JobSpec, Route
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.window_codec import WindowDecoder, WindowEncoder, from_message

INPUTS, NIGHTLY_INPUTS = 150, 10_000
MEMORY_AT_MOST_BYTES = 64 << 20
DEEP = [b"[" * 5000, b'{"a":' * 5000, b"- " * 5000, b"{a: " * 5000, b"!!python/object/apply:os.system [id]"]
REQUEST = FaultRequest("nic.down", "h0", Nic("h0", 0, "rxe0", "eth9", "10.0.0.1", 1e9))
INVENTORY = b"""\
all:
  vars: {c4_fabric: {switches: [s0], links: [{between: [leaf0/e0, s0], rate: 10gbit}, {between: [h0, s0], rate: 10gbit},
    {between: [h1, s0], rate: 10gbit}, {between: [h2, s0], rate: 10gbit}, {between: [h3/0, s0], rate: 10gbit}]}}
  hosts:
    h[0:3]: {ansible_host: 127.0.0.1, c4: {disruptive: true, nics: [{netdev: eth9, rate: 10gbit}]}}
  children: {switches: {hosts: {leaf0: {}}}}
"""


def entry():
    """A journal's entry, as it is on disk."""
    lease = Lease("nic.down-1-1", REQUEST, 1.0, 2.0)
    return msgspec.json.encode(Entry(lease, TargetKind.NIC, Plan((), (), (Delete("/x"),)), {"a": "b"}, 1.0, "boot"))


def ring(folder):
    """A telemetry ring, as a rank writes it."""
    Recorder(folder / "seed.ring", "job", 0)
    return (folder / "seed.ring").read_bytes()


def of_journal(path):
    """Read an entry and a quarantine, each where the injector looks for it."""
    root = path.parent / "state"
    (root / "faults").mkdir(parents=True, exist_ok=True)
    for place in (root / "faults/x.json", root / "quarantine.json"):
        place.write_bytes(path.read_bytes())
    records = Journal(root)
    found = len(records.entries()) + (records.quarantine is not None) + len(records.damaged())
    assert found >= 2
    records.refuse_quarantined()


def of_targets(path):
    """Read what may be broken, from a file of root's."""
    target = path.parent.parent / "etc/targets.json"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(path.read_bytes())
    target.chmod(0o644)
    permitted.load()


def of_request(path):
    """Read a request as the injector gets it."""
    injector._request(path.read_bytes().decode("utf-8", "surrogateescape"))


def of_fault(path):
    """Read a file of the catalogue."""
    catalogue._read(path)


class Received:
    """A channel on which one message arrives before it is closed."""

    def __init__(self, message):
        self._messages = [message]

    async def receive(self):
        """The message, then the end."""
        if not self._messages:
            await asyncio.sleep(0)  # let the answer be sent
            raise ChannelClosed("closed")
        return self._messages.pop()

    async def send(self, data):
        """Answers are not looked at."""


def message():
    """A rank's request, as an agent relays it."""
    flow = Flow("j/j:data/0>1/0.0", "j", "h0/0", "h1/0", 1e10)
    return msgspec.msgpack.encode(Call(7, "route", msgspec.Raw(msgspec.msgpack.encode(Route("j", (flow,))))))


def of_wire(path):
    """Receive a message as the master does; what its handler raises beyond a refusal is reported as a bug."""

    async def route(_):
        return Empty()

    async def receive():
        bugs = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
        await Peer(Received(path.read_bytes()), {"route": Handler(Route, route)}).serve()
        return bugs

    assert asyncio.run(receive()) == []


def of_recording(path):
    """Read a recording, and judge it again."""
    records, _ = read_telemetry(path)
    detect(records)


def a_window():
    """A window of a host whose rank is in an operation of two, as it is before it is encoded."""
    comm = CommRecord("j:data", "j", (Member(0, "h0", ("h0/0",), 0), Member(1, "h1", ("h1/0",), 1)))
    op = OpRecord("j:data", 0, 3, "all_reduce", "ring", "float32", 64, 1.0, 1.0, 0.0, (1,))
    conn = ConnRecord("j:data", 0, 1, "h0/0", "h1/0", 7, 49152, 3, 64, 0.1, 0.0, 0.1, 0.1, 1.0, 1, 0, "transfer", 1.5)
    end = ArrivalRecord("j:data", 0, 1, "h1/0", "h0/0", 8, 3, 3, 30)
    nic, rank = NicRecord("h0/0", "linkup", 0, 0, 0), RankRecord("j", 0, "h0", 7, "running")
    return window_of("h0", 1, 1.0, 2.0, (comm,), (rank,), (op,), (conn,), (end,), (nic,))


def of_window(path):
    """Decode a window as the master does, and have it judged; what raises beyond a refusal is a bug."""
    try:
        window = WindowDecoder().decode(from_message(path.read_bytes()))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    parts, detector = WindowParts({"j": Job(JobSpec("j", "none", (), ()))}), Detector()
    own, _ = parts.own(window)
    PathController().ingest(own)
    for part in parts.parts(own).values():
        detector.ingest_window(part)
    detector.ingest_window(own)
    detector.ingest(Evaluated(2.5))


SEEDS = {
    "journal": (lambda _: entry(), of_journal),
    "targets": (
        lambda _: msgspec.json.encode(Permitted({"h0": PermittedHost(disruptive=True, nics=(REQUEST.nic,))})),
        of_targets,
    ),
    "request": (lambda _: msgspec.json.encode(REQUEST), of_request),
    "inventory": (lambda _: INVENTORY, load_inventory),
    "fault": (lambda _: resource("faults", "nic.loss.yml").read_bytes(), of_fault),
    "topology": (lambda _: (DIRECTORY / "clos-2x4.yml").read_bytes(), lambda path: load_topology(str(path))),
    "graph": (lambda _: (DIRECTORY / "unequal-2x4.yml").read_bytes(), lambda path: load_topology(str(path))),
    "agent": (lambda _: b"{name: h0, master: m, trust: t, nics: []}", config.load),
    "ring": (ring, read_telemetry_file),
    "wire": (lambda _: message(), of_wire),
    "window": (lambda _: msgspec.msgpack.encode(WindowEncoder().encode(a_window())), of_window),
    "recording": (lambda _: b"".join(to_lines((a_window(), Evaluated(1.0)))), of_recording),
}


def mutated(seed, draw):
    """The seed with bytes changed, cut out, doubled or put in, or something nested deeply."""
    data = bytearray(seed)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 40)]
            case 2:
                data[at:at] = draw.randbytes(draw.randint(1, 20))
            case 3:
                data[at:at] = data[at : at + draw.randint(1, 60)]
            case 4:
                data[at:at] = draw.choice(
                    [b"1e999", b"-1", b"null", b"9" * 400, b"\x00", b"\x85", b"&a *a", b"2001-99-99"]
                )
            case _:
                data[at:at] = draw.choice(DEEP) if draw.random() < 0.1 else b":"
    return bytes(data)


@pytest.mark.parametrize("count", [INPUTS, pytest.param(NIGHTLY_INPUTS, marks=pytest.mark.nightly, id="night")])
@pytest.mark.parametrize("kind", SEEDS)
def test_whatever_is_in_a_file_it_is_read_or_refused(kind, count, tmp_path, monkeypatch, drills, request):
    """No mutated input gives anything but data or one line, leaves a file elsewhere, or takes memory without bound."""
    monkeypatch.setattr(permitted, "configuration", lambda: tmp_path / "etc")
    seed_of, read = SEEDS[kind]
    draw, seed = random.Random(f"{kind}{count}"), seed_of(tmp_path)
    assert not escape(read, tmp_path / ("x.yml" if kind != "fault" else "nic.loss.yml"), seed)
    path = tmp_path / "in" / ("nic.loss.yml" if kind == "fault" else "x.yml")
    path.parent.mkdir()
    before = files(tmp_path)
    tracemalloc.start()
    escapes = list(filter(None, (escape(read, path, mutated(seed, draw)) for _ in range(count))))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    escapes += sorted(name for name in files(tmp_path) - before if "/in/" not in name and "/etc/" not in name)
    ledger = Ledger(drills, request.node.nodeid)
    ledger.measure("fuzz.inputs", count, "1", clock=Clock.NONE, kind=kind)
    ledger.measure("fuzz.peak_memory", peak_bytes, "B", at_most=MEMORY_AT_MOST_BYTES, clock=Clock.NONE, kind=kind)
    taken = ledger.measure("fuzz.escapes", len(escapes), "1", equals=0, clock=Clock.NONE, kind=kind)
    assert taken.outcome is Outcome.PASS, escapes[:3]
    assert peak_bytes < MEMORY_AT_MOST_BYTES


def escape(read, path, data):
    """What is wrong after reading this: an error that is not one line of ours. Empty if it was read or refused."""
    path.write_bytes(data)
    try:
        read(path)
    except C4Error as error:
        return f"{data!r}: {error}" if "\n" in str(error) else ""
    except Exception as error:
        return f"{data!r}: {error!r}"
    return ""


def files(folder):
    """Every file below a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and "state" not in path.parts}


@pytest.mark.skipif(os.geteuid() != 0, reason="targets.json is believed only if it is root's")
def test_a_seed_itself_is_read(tmp_path, monkeypatch):
    """The inputs that are mutated are valid ones."""
    monkeypatch.setattr(permitted, "configuration", lambda: tmp_path / "etc")
    for kind, (seed_of, read) in SEEDS.items():
        path = tmp_path / ("nic.loss.yml" if kind == "fault" else f"{kind}.yml")
        path.write_bytes(seed_of(tmp_path))
        if kind != "journal":
            read(path)
    assert json.loads(entry())["kind"] == "nic"
