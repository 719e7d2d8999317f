"""The commands on recorded telemetry and on fault rates, as people call them."""

import json

import jsonschema
import pytest
from c4d_telemetry import MIX, ticks

from c4bench.cli.main import main
from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.fabric import MissingLink
from c4bench.model.recording import Evaluated, FailureReported, LinksMissing, LossReported, PathsLearnt, TrafficArrival
from c4bench.model.step import StepOp
from c4bench.model.telemetry import Failure
from c4bench.record import RunDirectory
from c4bench.record.telemetry import read_telemetry, to_lines
from tools.documents.schemas import schemas
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

_RING = (StepOp("all_reduce", 4 << 20, 0.02),)
_FAULTS = {
    "slow receiver": (MIX, SimFault(SimFaultKind.NIC_RATE, 2, 2.0, factor=0.25, side="rx")),
    "slow path of a ring": (_RING, SimFault(SimFaultKind.NIC_RATE, 2, 2.0, factor=0.25, side="rx")),
    "slow rank": (MIX, SimFault(SimFaultKind.COMPUTE, 2, 2.0, factor=1.5)),
    "stopped rank": (MIX, SimFault(SimFaultKind.STOPPED, 2, 2.0)),
    "hung rank": (MIX, SimFault(SimFaultKind.HUNG, 2, 2.0)),
    "killed rank": (MIX, SimFault(SimFaultKind.KILLED, 2, 2.0)),
    "mismatch": (MIX, SimFault(SimFaultKind.MISMATCH, 2, 2.0)),
    "black hole": (MIX, SimFault(SimFaultKind.PATH_RATE, 2, 2.0, factor=0.0, peer=3)),
}


def _recorded(tmp_path, ops, fault):
    path = tmp_path / "telemetry.jsonl"
    windows = [one for tick in ticks(SimJob(5, ops, seed=8), (fault,), 4.2) for one in tick.windows]
    path.write_bytes(b"".join(to_lines(windows)))
    return path


def test_links_are_known_where_ways_are_on_record(tmp_path, capsys):
    """What is slow in a ring may be a link, if the recording tells which links the connections cross."""
    windows, _ = read_telemetry(_recorded(tmp_path, *_FAULTS["slow path of a ring"]))
    conns = {(one.source, one.destination, one.source_port) for window in windows for one in window.conns}
    ways = tuple((*conn, (f"{conn[0]} up", f"{conn[1]} down")) for conn in sorted(conns))
    RunDirectory(tmp_path).save_telemetry("job", [PathsLearnt(0.0, ways), *windows])
    assert main(["detect", str(tmp_path / "telemetry/job.jsonl")]) == 0
    assert "link h1/0 up" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        b'{"record":"judged","at_s":',
        b'{"record":"judged","at_s":"soon"}',
        b'{"record":"gossip","at_s":1.0}',
        b'{"record":"failure","at_s":1.0,"job":"job","comm":"w","failure":{"rank":1}}',
        b'{"record":{}}',
        b"[]",
        b"\xff\x00",
        b"",
    ],
)
def test_torn_lines_are_counted_and_left_out(line, tmp_path, capsys):
    """Lines that are no record, among those that are, change nothing but the count; nothing else is a usage error."""
    path = _recorded(tmp_path, *_FAULTS["stopped rank"])
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[1:], lines[-1][:99]]))
    assert main(["detect", str(path)]) == 0
    out = capsys.readouterr()
    assert "2 x torn line" in out.err
    assert "rank job:2" in out.out
    path.write_bytes(line + b"\n")
    assert main(["detect", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_lies_of_the_record_are_not_believed(tmp_path, capsys):
    """Words of ranks and jobs that do not exist, and times that no clock shows, make no finding."""
    job = SimJob(5, MIX, seed=8)
    failure, loss = Failure(77, "x", "RETRY_EXC_ERR", -5), NetworkLoss(77, Component("nic", "h9/0"), 1e300)
    lies = [
        FailureReported(1.0, "other", "world", failure),
        FailureReported(1.0, "job", "job.world", failure),
        LossReported(1.0, "other", "world", loss),
        LossReported(1.0, "job", "job.world", loss),
        PathsLearnt(-1.0, (("", "", -1, ()), ("h0/0", "h1/0", 49152, ("x",)))),
        LinksMissing(1.0, (MissingLink("x", 1e300, -1e300, ("",)),)),
        TrafficArrival("job", 9.0, -9.0, frozenset(), frozenset(), known=True),
    ]
    records = []
    for tick in simulate(job, (), 3.0):
        records += [*tick.windows, *lies, Evaluated(tick.time_s), Evaluated(1e300)]
    RunDirectory(tmp_path).save_telemetry("job", records)
    assert main(["detect", str(tmp_path / "telemetry/job.jsonl")]) == 0
    out = capsys.readouterr()
    assert out.out == ""
    assert "x torn time, dropped" in out.err


@pytest.mark.parametrize("name", _FAULTS)
def test_every_kind_of_diagnosis_follows_the_schema(name, tmp_path, capsys):
    """What `detect --json` prints is a list of diagnoses that the checked-in schema describes."""
    path = _recorded(tmp_path, *_FAULTS[name])
    assert main(["detect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 1
    jsonschema.Draft202012Validator(json.loads(schemas()["diagnosis.schema.json"])).validate(found[0])
    assert found[0]["cause"]
    assert found[0]["evidence"]
    assert found[0]["figures"]


def test_probes_are_asked_for_where_the_traffic_cannot_tell(tmp_path, capsys):
    """A ring's finding lists its alternative and the flows that would decide."""
    main(["detect", str(_recorded(tmp_path, *_FAULTS["slow path of a ring"])), "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert len(found["alternatives"]) == 1
    assert len(found["probes"]) == 2
    assert found["confidence"] < 0.7


def test_what_was_not_believed_is_told(tmp_path, capsys):
    """Windows that came twice are counted on stderr, and the finding is the same."""
    path = _recorded(tmp_path, *_FAULTS["stopped rank"])
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(line for line in lines for _ in range(2)))
    assert main(["detect", str(path)]) == 0
    out = capsys.readouterr()
    assert f"{len(lines)} x old window" in out.err
    assert "rank job:2" in out.out


_TABLE = """
nic: {per_month: 10, before: &b {detection_s: 1800, diagnosis_isolation_s: 7200, re_initialisation_s: 300,
      checkpoint_interval_s: 3600}, after: {detection_s: 1, diagnosis_isolation_s: 2, re_initialisation_s: 9,
      checkpoint_interval_s: 600}}
"""


def test_downtime_table_is_printed(tmp_path, capsys):
    """Four rows and a total, before and after, in percent of the month."""
    path = tmp_path / "faults.yml"
    path.write_text(_TABLE)
    assert main(["downtime", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "post_checkpoint",
        "detection",
        "diagnosis_isolation",
        "re_initialisation",
        "total",
    ]
    assert lines[-1].split()[1:] == ["4.28%", "0.12%"]
    assert main(["downtime", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["name"] == "total"


@pytest.mark.parametrize("text", ["nic: {per_month: x}", "nic: [", "nic: {per_month: 1, befor: {}}", "- 1", ""])
def test_bad_rates_are_refused_in_one_line(text, tmp_path, capsys):
    """A mistake in the file is named with the file, and is a usage error."""
    path = tmp_path / "faults.yml"
    path.write_text(text)
    assert main(["downtime", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
