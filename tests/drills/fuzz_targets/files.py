"""Files that users give, or c4bench has written: inventories, topologies, jobs, paths, recordings, runs, state."""

import json
import subprocess
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import msgspec
from fuzz_mutations import of
from fuzzing import Target

from c4bench.c4d.offline import detect
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.cli import detect as detect_command
from c4bench.cli import plan as plan_command
from c4bench.control.state.store import FinishedExchange, MasterState, RankResult, RunningJob, Store
from c4bench.inventory import ansible, load
from c4bench.inventory.inventory import select
from c4bench.inventory.review import review
from c4bench.lab.topology_file import DIRECTORY
from c4bench.lab.topology_file import load as load_topology
from c4bench.live.credentials import TokenFile
from c4bench.live.feed import FaultHistory
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.event import Diagnosed, HostReturned
from c4bench.model.fabric import Flow, Host
from c4bench.model.measurement import Clock, Outcome
from c4bench.model.recording import Evaluated
from c4bench.record.provenance import Provenance
from c4bench.record.run import MeasurementLine
from c4bench.record.telemetry import read_telemetry, to_lines
from c4bench.report.nights import read as read_night
from c4bench.report.verdict import evaluate_run
from c4bench.reserve.reservation import scheduler
from c4bench.wire.messages import Exchanged, Result
from c4bench.workload import job_file
from c4bench.workload.checkpoint import Checkpoints, Manifest
from fuzz_targets.wire import NICS, a_window, job_spec
from tools.campaign.trial_record import TrialRecord, named_findings, read_trials

INVENTORY = b"""\
all:
  vars: {c4_fabric: {switches: [s0], links: [{between: [leaf0/e0, s0], rate: 10gbit}, {between: [h0, s0], rate: 10gbit},
    {between: [h1, s0], rate: 10gbit}, {between: [h2, s0], rate: 10gbit}, {between: [h3/0, s0], rate: 10gbit}]}}
  hosts:
    h[0:3]: {ansible_host: 127.0.0.1, ansible_port: 22, ansible_ssh_common_args: "-o A=b",
      c4: {disruptive: true, nics: [{netdev: eth9, rate: 10gbit}]}}
  children: {switches: {hosts: {leaf0: {}}}}
"""
GRAPH_INVENTORY = b"""\
all:
  vars:
    c4_fabric:
      switches: [spine1]
      links:
        - {between: [a, leaf0/Ethernet0], rate: 100gbit}
        - {between: [b, leaf0], rate: 100gbit, bond: b0}
        - {between: [b, spine1], rate: 100gbit, bond: b0}
        - {between: [leaf0/Ethernet48, spine1/Ethernet0], rate: 400gbit, count: 1}
  hosts:
    a: {c4: {management: eth0, gpus: [{}],
      nics: [{netdev: eth2, device: mlx5_0, dscp: 26, address: 10.0.0.1, rate: 100gbit}]}}
    b: {ansible_connection: local, c4: {nics: [{netdev: bond0, bond: [eth2, eth3]}]}}
  children: {switches: {hosts: {leaf0: {c4: {rates: {Ethernet0: 100gbit}}}}}}
"""
_ANSIBLE = {
    "_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1", "c4": {"nics": [{"netdev": "eth2"}]}},
                           "b": {"c4": "{nics: [{netdev: eth3}]}"}, "leaf0": {}}},
    "all": {"children": ["ungrouped", "switches", "gpu"]}, "switches": {"hosts": ["leaf0"]},
    "gpu": {"hosts": ["a", "b"]},
}  # fmt: skip
_HOSTS = tuple(Host(nic.host, "127.0.0.1", (nic,)) for nic in NICS)
_JOB = b"""\
name: train
program: pretraining
hosts: [h0, h1]
spares: [h2]
policy: {hang: restart}
parameters: {model: llama-7b, steps: 3, pieces: 2, scale: {time: 0.1}, parallelism: {data: 2}}
meeting: {name: all, size: 4}
"""
_SCHEDULER = b"{drain: [drain, '{host}'], resume: [resume, '{host}'], busy: [busy], within_s: 5.0}"
_DOWNTIME = b"""\
nic:
  per_month: 2.0
  before: {detection_s: 1800, diagnosis_isolation_s: 3600, re_initialisation_s: 600, checkpoint_interval_s: 3600}
  after: {detection_s: 10, diagnosis_isolation_s: 60, re_initialisation_s: 300, checkpoint_interval_s: 600}
"""
_json = msgspec.json.encode


@contextmanager
def _file(folder, name, read):
    """A file of that name."""
    path = folder / name

    def consume(data):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        read(path)

    yield consume


def _inventory(path):
    known = load(path)
    assert review(known) is not None
    assert select(known, "all") is not None


@contextmanager
def _listing(folder):
    """What `ansible-inventory` prints of an inventory that only Ansible reads."""
    path = folder / "hosts.ini"
    path.write_text("")
    before = ansible._ask

    def consume(data):
        ansible._ask = lambda _: subprocess.CompletedProcess((), 0, data, b"")
        _inventory(path)

    try:
        yield consume
    finally:
        ansible._ask = before


@contextmanager
def _beside(folder):
    """A file of variables beside an inventory."""
    (folder / "hosts.yml").write_bytes(GRAPH_INVENTORY)
    (folder / "host_vars").mkdir()

    def consume(data):
        (folder / "host_vars/a.yml").write_bytes(data)
        _inventory(folder / "hosts.yml")

    yield consume


def _plan(path, *, flows=False):
    """The command with the file as its flows, or as its atlas."""
    other = path.with_name("other")
    other.write_bytes(_ATLAS if flows else _FLOWS)
    given = (path, other) if flows else (other, path)
    plan_command._run(SimpleNamespace(flows=given[0], atlas=given[1], conditions=None, json=True, exact=False))


def _atlas():
    hops = {("h0/0", "h1/0", 49152): ("leaf0", "h1/0"), ("h0/0", "h1/0", 49153): ("leaf1", "h1/0")}
    return Atlas.from_answers(hops).to_json()


def _knowledge():
    known = {"entries": [["h0/0", "h1/0", {"49152": {"hops": ["leaf0", "h1/0"], "learnt_s": 1.0, "confirmed_s": 2.0}}]],
             "unfinished": [["h0/0", "h1/0"]]}  # fmt: skip
    return _json(known)


_ATLAS, _FLOWS = _atlas(), _json([Flow("j/a", "j", "h0/0", "h1/0", 1e9)])


def _paths(data):
    known = PathKnowledge()
    known.recall(PathKnowledge.from_json(data))
    known.atlas()
    known.to_json()


@contextmanager
def _read(_folder, read):
    yield read


def _recording(path):
    records, _ = read_telemetry(path)
    detect(records)


@contextmanager
def _run_directory(folder, name):
    """A run directory of which one file is the input; pytest continues it, and nights and reports read it."""
    (folder / "run.json").write_bytes(_PROVENANCE)

    def consume(data):
        (folder / name).write_bytes(data)
        evaluate_run(folder)
        read_night(folder)

    yield consume


@contextmanager
def _state(folder, name):
    """A master's state folder of which one file is the input."""
    (folder / "state/jobs").mkdir(parents=True)

    def consume(data):
        (folder / "state" / name).write_bytes(data)
        store = Store(folder / "state")
        try:
            store.events()
            store.entries("j")
            store.save()
        finally:
            store.close()

    yield consume


@contextmanager
def _history(folder):
    """A history of faults, which the live page shows as it grows."""
    path = folder / "faults.jsonl"

    def consume(data):
        path.write_bytes(data)
        _json(FaultHistory(path).poll())

    yield consume


@contextmanager
def _tokens(folder):
    def consume(data):
        (folder / "page-tokens.json").write_bytes(data)
        TokenFile(folder).holder("token", 1.0)

    yield consume


@contextmanager
def _checkpoint(folder):
    """A manifest in the folder of checkpoints, which ranks share."""
    known = Checkpoints(folder)
    known.write(7, 0, 1, b"shard")
    manifest = next(folder.glob("*")) / "manifest.json"

    def consume(data):
        manifest.write_bytes(data)
        known.newest()

    yield consume


def _state_json():
    return _json(MasterState(jobs={"j": RunningJob(job_spec("j"), 4)}, roll={"h0"}, over=["k"]))


def _lines(*records):
    return b"".join(_json(one) + b"\n" for one in records)


_NIC = Component("nic", "h0/0")
_DIAGNOSIS = Diagnosis(
    "j", Syndrome.COMMUNICATION_HANG, _NIC, 1.0, 2.0, 3.0, 0.9, ("because",), "else", alternatives=(_NIC,)
)
_PROVENANCE = _json(
    Provenance("main", "2026-01-01T00:00:00Z", "0.1.0", "", False, "Linux", ("pytest",), 1, "lab", "", "virtual")
)
_LINE = MeasurementLine(
    "tests/x.py::y", "a.b", 1.0, "s", "<= 2", Outcome.PASS, Clock.NONE, {"kind": "x", "plus_minus": 0.1}
)
_MEASUREMENTS = _lines(_LINE, msgspec.structs.replace(_LINE, value=None, outcome=Outcome.INCONCLUSIVE, limit=""))
_EVENTS = _lines(
    {"time_s": 1.0, "kind": "scenario", "scenario": "tests/x.py::y", "outcome": "pass", "reason": ""},
    {"time_s": 1.0, "kind": "host_lost", "host": "h0", "reason": "gone"},
    {"time_s": 2.0, "kind": "applied", "fault": "nic.down", "host": "h0", "target": "nic h0/0",
     "observed_s": 2.1, "seen": True},
    {"time_s": 3.0, "kind": "healed", "fault": "nic.down", "host": "h0", "target": "nic h0/0", "reason": "asked",
     "by": "a", "recovered": True, "residue": ""},
)  # fmt: skip
_TRIALS = _lines(
    TrialRecord("t1", "nic.down", Syndrome.COMMUNICATION_HANG, _NIC, ("10.0.0.1",), {"fraction": 0.5}, 1.0, 2.0,
                9.0, 0.5, False, named_findings((_DIAGNOSIS,))),
    {"refused": "no such target"},
)  # fmt: skip
_MASTER_EVENTS = _lines(Diagnosed(1.0, _DIAGNOSIS), HostReturned(2.0, "h0"))
_EXCHANGED = Exchanged((b"a", b"b"))
_ENTRIES = _lines(FinishedExchange("j:data", "key", _EXCHANGED), RankResult(Result("j", 0, {"kind": "ready"}, 1)))
TARGETS = (
    Target("inventory", of("yaml", INVENTORY, GRAPH_INVENTORY),
           partial(_file, name="x.yml", read=_inventory), several=True),
    Target("inventory-ansible", of("json", json.dumps(_ANSIBLE).encode()), _listing, several=True),
    Target("inventory-host-vars", of("yaml", b"{c4: {nics: [{netdev: eth9}]}, ansible_port: 22}"), _beside,
           several=True),
    Target("topology", of("yaml", *tuple((DIRECTORY / f"{name}.yml").read_bytes() for name in (
        "clos-2x4", "unequal-2x4", "fat-tree-2x2", "sites-2", "bonds-2", "planes-2"))),
           partial(_file, name="x.yml", read=lambda path: load_topology(str(path)))),
    Target("job-file", of("yaml", _JOB),
           partial(_file, name="JOB.yml", read=lambda path: job_file.read(path, _HOSTS))),
    Target("scheduler-file", of("yaml", _SCHEDULER),
           partial(_file, name="x.yml", read=lambda path: scheduler(str(path)))),
    Target("downtime", of("yaml", _DOWNTIME),
           partial(_file, name="x.yml", read=lambda path: detect_command._table(path, {}))),
    Target("atlas", of("json", _ATLAS), partial(_file, name="atlas.json", read=_plan)),
    Target("flows", of("json", _FLOWS),
           partial(_file, name="flows.json", read=partial(_plan, flows=True))),
    Target("paths", of("json", _knowledge()), partial(_read, read=_paths)),
    Target("recording", of("lines", b"".join(to_lines((a_window(), a_window(2), Evaluated(2.0))))),
           partial(_file, name="j.jsonl", read=_recording)),
    Target("run-measurements", of("lines", _MEASUREMENTS), partial(_run_directory, name="measurements.jsonl")),
    Target("run-events", of("lines", _EVENTS), partial(_run_directory, name="events.jsonl")),
    Target("run-json", of("json", _PROVENANCE), partial(_run_directory, name="run.json")),
    Target("trials", of("lines", _TRIALS),
           partial(_file, name="campaign.jsonl", read=lambda path: read_trials(path.parent))),
    Target("master-state", of("json", _state_json()), partial(_state, name="state.json")),
    Target("master-events", of("lines", _MASTER_EVENTS), partial(_state, name="events.jsonl")),
    Target("master-log", of("lines", _ENTRIES), partial(_state, name="jobs/j.log")),
    Target("fault-history", of("lines", _EVENTS), _history),
    Target("tokens", of("json", _json([{"name": "a", "sha256": "0" * 64, "ends_s": 2e9}])), _tokens),
    Target("checkpoint", of("json", _json(Manifest(7, ("0" * 64,)))), _checkpoint),
)  # fmt: skip
