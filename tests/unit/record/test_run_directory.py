import gc
import json
import math
import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.model.measurement import Clock, Outcome
from c4bench.model.recording import Evaluated
from c4bench.record import Ledger, RunDirectory, begin
from c4bench.record.artefacts import DelayMatrices, DelayMatrix
from c4bench.record.encoding import decode, encode
from c4bench.record.provenance import collect
from c4bench.record.run import _fresh, slug


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "runs", "smoke")


def test_latest_points_at_the_newest_run(tmp_path):
    """`latest` always leads to the run that was made last."""
    first = RunDirectory.create(tmp_path, "a")
    second = RunDirectory.create(tmp_path, "a")
    assert first.path != second.path
    assert (tmp_path / "latest").resolve() == second.path.resolve()
    assert not (tmp_path / "latest").readlink().is_absolute()


def test_a_run_name_cannot_leave_its_folder(tmp_path):
    """A name with slashes becomes one folder under the root."""
    run = RunDirectory.create(tmp_path, "../tests/unit::x[1]")
    assert run.path.parent == tmp_path


def test_only_a_directory_opens(tmp_path):
    """Opening what is not a directory says which one is meant."""
    with pytest.raises(UsageError, match="not a run directory"):
        RunDirectory(tmp_path / "missing")


def test_line_is_the_documented_object(run):
    """A line has the eight documented fields in order, with the limit written as a comparison."""
    Ledger(run, "s").measure("busbw_share", 0.985, "1", at_least=0.97, zone="b", area=1)
    line = (run.path / "measurements.jsonl").read_bytes()
    assert line == (
        b'{"scenario":"s","name":"busbw_share","value":0.985,"unit":"1","limit":">= 0.97","outcome":"pass",'
        b'"clock":"virtual","labels":{"area":1,"zone":"b"}}\n'
    )


def test_label_order_does_not_reach_the_file(run):
    """The same measurement with its labels in another order gives the same bytes."""
    ledger = Ledger(run, "s")
    ledger.measure("x", 1, "1", a=1, b=2)
    ledger.measure("x", 1, "1", b=2, a=1)
    first, second = (run.path / "measurements.jsonl").read_bytes().splitlines()
    assert first == second


def test_machine_clock_is_kept_apart(run):
    """What the machine's clock timed never enters the file that must be the same for a seed."""
    ledger = Ledger(run, "s")
    ledger.measure("plan_s", 1.5, "s", at_most=2, clock=Clock.MACHINE)
    ledger.measure("count", 3, "1", equals=3, clock=Clock.NONE)
    assert [m.name for m in run.timings()] == ["plan_s"]
    assert [m.name for m in run.measurements()] == ["count"]


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"at_least": 1.0}, "pass"),
        ({"at_least": 1.1}, "fail"),
        ({"at_most": 1}, "pass"),
        ({"equals": 2}, "fail"),
        ({}, "info"),
    ],
)
def test_outcome_follows_the_limit(run, limits, outcome):
    """A measurement is judged when taken and a miss does not raise."""
    assert Ledger(run, "s").measure("x", 1.0, "1", **limits).outcome == outcome


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_inconclusive_and_survives_the_file(run, value):
    """A value that is not finite neither passes nor fails, before and after a round trip."""
    Ledger(run, "s").measure("x", value, "s", at_least=1.0)
    (read,) = run.measurements()
    assert read.outcome is Outcome.INCONCLUSIVE
    assert math.isnan(read.value)


@pytest.mark.parametrize("label", ["at_mots", "atmost", "at_lest", "equal", "plusminus"])
def test_a_misspelt_limit_is_no_label(run, label):
    """It would leave the measurement without a limit, so that it passes whatever it is."""
    with pytest.raises(UsageError, match=f"'{label}' is no limit of a measurement; did you mean "):
        Ledger(run, "s").measure("x", 1.0, "1", **{label: 2.0})
    assert run.measurements() == ()


def test_two_limits_are_refused(run):
    """A measurement has one limit."""
    with pytest.raises(UsageError, match="one limit"):
        Ledger(run, "s").measure("x", 1.0, "1", at_least=0, at_most=2)
    assert run.measurements() == ()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_exactly(value):
    """Every finite float is read back as the same number."""
    assert decode(encode(value), float, "here") == value


def test_concurrent_writers_do_not_mix_lines(run):
    """Two processes that append at once leave whole lines."""
    text, count = "x" * 3000, 200
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            for _ in range(count):
                run.event(0.0, "tick", text=text)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert [event["text"] for event in run.events()] == [text] * (2 * count)


def test_events_open_with_time_and_kind(run):
    """An event's line begins with its time and kind, then its fields by name."""
    run.event(1.5, "alarm", job="j", about="h1/0")
    assert (run.path / "events.jsonl").read_text() == '{"time_s":1.5,"kind":"alarm","about":"h1/0","job":"j"}\n'


def test_artefacts_of_scenarios_lie_side_by_side(run):
    """Two scenarios of a run save an artefact of the same name and both are read back, in sorted order."""
    matrices = DelayMatrices((DelayMatrix("before", ("a/0", "b/0"), ((None, 8e-11), (8e-11, None))),))
    Ledger(run, "tests/b.py::t[x]").save("delay_matrix", matrices)
    Ledger(run, "tests/a.py::t").save("delay_matrix", matrices)
    loaded = run.load_all("delay_matrix", DelayMatrices)
    assert list(loaded) == ["tests-a.py-t", "tests-b.py-t-x"]
    assert set(loaded.values()) == {matrices}


def test_damage_is_reported_by_file_and_line(run):
    """A damaged line is named by file and number, in one sentence."""
    Ledger(run, "s").measure("x", 1.0, "1")
    with (run.path / "measurements.jsonl").open("a") as file:
        file.write("{oops\n")
    with pytest.raises(UsageError, match=r"measurements\.jsonl:2 is not"):
        run.measurements()


@pytest.mark.parametrize("name", ["../x", "a/b/c", "", "A b"])
def test_artefact_names_are_words(run, name):
    """An artefact name that could lead elsewhere is refused."""
    with pytest.raises(UsageError, match="artefact name"):
        run.save(name, {})


def test_provenance_round_trip(run):
    """What is written to run.json is what is read, and names code, machine and command."""
    made = collect(
        name="smoke", started_at="2030-01-01T00:00:00Z", command=["pytest", "--hosts", "softroce"], seed=7,
        backend="softroce", topology="leaf-spine", clock="virtual", kernel="7.3.4", kernel_build="kernel-0123",
    )  # fmt: skip
    run.write_provenance(made)
    assert run.provenance() == made
    assert (made.environment.kernel, made.environment.kernel_build) == ("7.3.4", "kernel-0123")
    assert json.loads((run.path / "run.json").read_text())["command"] == ["pytest", "--hosts", "softroce"]


def test_a_run_directory_serves_one_run_at_a_time(tmp_path):
    """A second run is refused in one line while the first holds the directory, and may have it afterwards."""
    rest = {"command": ["pytest"], "seed": 1, "backend": "hosts", "topology": "", "clock": "machine"}
    first = begin(tmp_path / "run", "main", **rest)
    with pytest.raises(UsageError, match="is in use by another run; give this one its own directory"):
        begin(tmp_path / "run", "main", **rest)
    del first
    begin(tmp_path / "run", "main", **rest)


def test_a_run_is_named_by_the_time_in_utc(tmp_path, monkeypatch):
    """Two people in different time zones find their runs in the order in which they were started."""
    monkeypatch.setenv("TZ", "XXX-9")
    time.tzset()
    try:
        before = datetime.now(UTC)
        run = RunDirectory.create(tmp_path, "smoke")
        after = datetime.now(UTC)
    finally:
        monkeypatch.undo()
        time.tzset()
    stamp = datetime.strptime(run.path.name, "%Y%m%dT%H%M%SZ-smoke").replace(tzinfo=UTC)
    assert before.replace(microsecond=0) <= stamp <= after


def test_runs_of_the_same_second_are_numbered(tmp_path):
    """Each has a directory of its own, and no file of a third run's is touched."""
    names = [_fresh(tmp_path, "x").name for _ in range(3)]
    assert names == ["x", "x-2", "x-3"]


def test_a_directory_is_free_once_its_run_is_gone(tmp_path):
    """A run that ends without a word, or whose object is dropped, leaves no hold behind."""
    held = RunDirectory(tmp_path)
    held.hold()
    other = RunDirectory(tmp_path)
    with pytest.raises(UsageError, match=f"{tmp_path} is in use by another run"):
        other.hold()
    del held
    gc.collect()
    other.hold()


def test_an_artefact_without_a_qualifier_is_read_under_none(run):
    """One word alone has the empty qualifier; what was never saved is None, and no artefact at all is an empty set."""
    assert run.load("delay_matrix", DelayMatrices) is None
    assert run.load_all("delay_matrix", DelayMatrices) == {}
    run.save("delay_matrix", DelayMatrices(()))
    run.save("delay_matrix/b", DelayMatrices(()))
    assert list(run.load_all("delay_matrix", DelayMatrices)) == ["", "b"]
    assert (run.path / "artefacts/delay_matrix.json").read_bytes().endswith(b"\n")


def test_scenarios_that_run_again_lose_their_earlier_lines(run):
    """What belongs to other scenarios than those that are kept goes; what belongs to the run stays."""
    for scenario in ("a", "b"):
        ledger = Ledger(run, scenario)
        ledger.measure("x", 1.0, "1")
        ledger.measure("t", 1.0, "s", clock=Clock.MACHINE)
        run.finish_scenario(scenario, Outcome.FAIL, "why", 2.5)
    run.lose_host("h3", "no answer")
    run.keep_scenarios(["b"])
    assert [taken.scenario for taken in (*run.measurements(), *run.timings())] == ["b", "b"]
    assert run.lost_hosts() == {"h3": "no answer"}
    finished, lost = run.events()
    assert finished == {"time_s": 2.5, "kind": "scenario", "outcome": "fail", "reason": "why", "scenario": "b"}
    assert (lost["time_s"], lost["kind"]) == (0.0, "host_lost")


@pytest.mark.parametrize("line", ["[]", "{", '{"time_s": 0}', '{"kind": []}', "[" * 5000])
def test_a_damaged_line_of_events_is_named(run, line):
    """Whoever reads or continues the run is sent to the line, and the file stays as it is."""
    (run.path / "events.jsonl").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=r"events\.jsonl:1 is"):
        run.events()
    if "time_s" not in line and "kind" not in line:
        with pytest.raises(UsageError, match=r"events\.jsonl:1 is"):
            run.keep_scenarios([])
    assert (run.path / "events.jsonl").read_text() == f"{line}\n"


def test_a_page_replaces_a_link_and_is_whole(run, tmp_path):
    """A link of the page's name is not followed; nothing else is left in the directory."""
    other = tmp_path / "other"
    other.write_text("keep")
    (run.path / "report.html").symlink_to(other)
    path = run.write_page("report.html", "<p>ü")
    assert (path.read_text(), path.is_symlink(), other.read_text()) == ("<p>ü", False, "keep")
    assert [entry.name for entry in run.path.iterdir()] == ["report.html"]


def test_telemetry_of_a_job_is_one_file(run):
    """A job's name becomes a file name; saving it again replaces the lines of before."""
    records = [Evaluated(1.0), Evaluated(2.0)]
    run.save_telemetry("train/~1", records)
    run.save_telemetry("train/~1", records)
    (path,) = (run.path / "telemetry").iterdir()
    assert path.name == "train-1.jsonl"
    assert len(path.read_text().splitlines()) == 2


def test_a_run_that_has_not_started_says_what_is_missing(run):
    """Without provenance a directory is no run yet; reading it names the file."""
    assert not run.started
    with pytest.raises(UsageError, match=r"run\.json is missing; name a directory that a run has written"):
        run.provenance()
    (run.path / "run.json").write_text("{}")
    assert run.started


@pytest.mark.parametrize(
    ("text", "name"), [("a b/c", "a-b-c"), ("..", "run"), ("-x.", "x"), ("t[é]", "t-é"), ("", "run")]
)
def test_any_text_becomes_a_file_name(text, name):
    """Letters, digits and a few signs stay; what could lead elsewhere, or hide the file, does not."""
    assert slug(text) == name
