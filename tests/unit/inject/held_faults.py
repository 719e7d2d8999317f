"""A fault of a rank that exists only as its controls, held by the injector, and what it left in the journal."""

import os
from pathlib import Path

import msgspec
from fakes import rank_request

from c4bench import inject
from c4bench.inject import fault_session, processes
from c4bench.inject.catalogue import load
from c4bench.inject.journal import Journal
from c4bench.inject.processes import ProcessTarget
from c4bench.inject.registry import DRIVERS, WITNESSES
from c4bench.inject.witness.base import Aftermath, Evidence
from c4bench.workload.controls import Controls

CATALOGUE = load()
REQUEST = msgspec.structs.replace(rank_request("process.slow", factor=3), lease_s=0.6, witness_s=0.01)
INJECT = str(Path(inject.__file__).parent)


class InstantWitness:
    def __init__(self, request):
        self.request = request

    def before(self):
        return {"gap_s": 1.0}

    def during(self, onset_s):
        return Evidence({"gap_s": 3.0}, onset_s)

    def after(self):
        return Aftermath({"gap_s": 1.0}, True)


def make_place(root, monkeypatch):
    root.mkdir(exist_ok=True)
    Controls.create(root / "controls")
    target = ProcessTarget(os.getpid(), 1, os.geteuid(), root / "ring", root / "controls")
    monkeypatch.setattr(processes, "find", lambda _: target)
    monkeypatch.setattr(fault_session, "WITNESSES", {**WITNESSES, "compute_pace": InstantWitness})
    monkeypatch.setattr(fault_session, "DRIVERS", dict(DRIVERS))  # loaded here, not among the lines that are counted
    return Journal(root / "state")


def factor(root):
    return Controls.open(root / "controls").read("compute_factor")


def audited(root):
    path = root / "state" / "audit.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def events(root, kind):
    return [line for line in audited(root) if line["event"] == kind]


def run_hold(records, sent, *, say_revert=False, close=True):
    reader, writer = os.pipe()
    if say_revert:
        os.write(writer, b"revert\n")
    if close:
        os.close(writer)
    try:
        fault_session.hold(REQUEST, CATALOGUE, records, reader, sent.append)
    finally:
        os.close(reader)
        if not close:
            os.close(writer)
