"""Files and requests that somebody else has written: whatever is in them, they are read, or refused in one line."""

import json
import os
import random
import tracemalloc

import msgspec
import pytest

from c4bench.agent import config
from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_reader import read_telemetry_file
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
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, Lease, TargetKind
from c4bench.record.telemetry import read_telemetry
from c4bench.resources import resource

INPUTS, NIGHTLY_INPUTS = 150, 12_500
MEMORY_AT_MOST_BYTES = 64 << 20
DEEP = [b"[" * 5000, b'{"a":' * 5000, b"- " * 5000, b"{a: " * 5000, b"!!python/object/apply:os.system [id]"]
REQUEST = FaultRequest("nic.down", "h0", Nic("h0", 0, "rxe0", "eth9", "10.0.0.1", 1e9))
INVENTORY = b"""\
all:
  hosts:
    h[0:3]: {ansible_host: 127.0.0.1, c4: {disruptive: true, nics: [{netdev: eth9, rate: 10gbit}]}}
  children: {switches: {hosts: {leaf0: {}}}}
"""


def entry():
    """A journal's entry, as it is on disk."""
    lease = Lease("nic.down-1-1", REQUEST, 1.0, 2.0)
    return msgspec.json.encode(Entry(lease, TargetKind.NIC, Plan((), (), (Delete("/x"),)), {"a": "b"}, 1.0, "boot"))


def _plan():
    return msgspec.json.decode(
        b'{"claims":[],"apply":[],"revert":[{"type":"delete","path":"/x"}]}', type=injector_plan()
    )


def injector_plan():
    """The type of an entry's plan."""
    return Entry.__annotations__["plan"]


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
    "agent": (lambda _: b"{name: h0, master: m, trust: t, nics: []}", config.load),
    "ring": (ring, read_telemetry_file),
    "recording": (lambda _: b'{"record":"judged","at_s":1.0}\n', read_telemetry),
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
def test_whatever_is_in_a_file_it_is_read_or_refused(kind, count, tmp_path, monkeypatch):
    """No mutated input gives anything but data or one line, leaves a file elsewhere, or takes memory without bound."""
    monkeypatch.setattr(permitted, "configuration", lambda: tmp_path / "etc")
    seed_of, read = SEEDS[kind]
    draw, seed = random.Random(f"{kind}{count}"), seed_of(tmp_path)
    read_or_refused(read, tmp_path / ("x.yml" if kind != "fault" else "nic.loss.yml"), seed)
    path = tmp_path / "in" / ("nic.loss.yml" if kind == "fault" else "x.yml")
    path.parent.mkdir()
    before = files(tmp_path)
    tracemalloc.start()
    for _ in range(count):
        read_or_refused(read, path, mutated(seed, draw))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MEMORY_AT_MOST_BYTES
    assert {name for name in files(tmp_path) - before if "/in/" not in name and "/etc/" not in name} == set()


def read_or_refused(read, path, data):
    """Read it; a refusal is one line."""
    path.write_bytes(data)
    refusal = ""
    try:
        read(path)
    except C4Error as error:
        refusal = str(error)
    assert "\n" not in refusal


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
