"""Read and write a run directory."""

import fcntl
import math
import os
import re
import weakref
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import msgspec

from c4bench import files
from c4bench.errors import UsageError
from c4bench.model.measurement import PLUS_MINUS, Clock, Measurement, Outcome, evaluate
from c4bench.model.recording import Record
from c4bench.record.encoding import decode, encode
from c4bench.record.provenance import Facts, Provenance, collect, differences
from c4bench.record.telemetry import to_lines


class MeasurementLine(msgspec.Struct, frozen=True):
    """One line of `measurements.jsonl` or `timings.jsonl`; a value that is not a number is null."""

    scenario: str
    name: str
    value: float | None
    unit: str
    limit: str
    outcome: Outcome
    clock: Clock
    labels: dict[str, str | int | float]

    def measurement(self) -> Measurement:
        """The measurement that was written, with NaN for null."""
        value = math.nan if self.value is None else self.value
        return Measurement(
            self.scenario, self.name, value, self.unit, self.limit, self.outcome, self.clock, self.labels
        )


T = TypeVar("T")

_ARTEFACT = re.compile(r"[a-z0-9_]+(/[\w.-]+)?")
_UNSAFE = re.compile(r"[^\w.-]+")
_BEGAN, _ENDED = "session_began", "session_ended"


class RunDirectory:
    """An existing run directory, to write to or to read.

    Lines are appended by single writes to files opened with O_APPEND, so that processes of one run never mix theirs.
    Raises UsageError when `path` is not a directory.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UsageError(f"{path} is not a run directory; name one under reports/runs, such as reports/runs/latest")
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str) -> Self:
        """Make `<root>/<UTC>-<name>` and point `<root>/latest` at it."""
        root.mkdir(parents=True, exist_ok=True)
        path = _fresh(root, f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug(name)}")
        point(root / "latest", path.name)
        return cls(path)

    def hold(self) -> None:
        """Keep every other run out of the directory until this process ends, or this object does.

        Raises UsageError if another run holds it.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} is in use by another run; give this one its own directory") from None

    def write_provenance(self, provenance: Provenance) -> None:
        """Write `run.json`."""
        files.replace(self.path / "run.json", [msgspec.json.format(encode(provenance), indent=2), b"\n"])

    @property
    def started(self) -> bool:
        """Whether its provenance has been written."""
        return (self.path / "run.json").exists()

    def provenance(self) -> Provenance:
        """What `run.json` says; UsageError where it is missing or damaged."""
        return self._read(self.path / "run.json", Provenance)

    def append(self, measurement: Measurement) -> None:
        """Add a line to `timings.jsonl` (machine clock) or `measurements.jsonl` (virtual clock, or counted)."""
        name = "timings.jsonl" if measurement.clock is Clock.MACHINE else "measurements.jsonl"
        self._append(name, measurement)

    def measurements(self) -> tuple[Measurement, ...]:
        """What was counted or timed on the virtual clock, in the order of taking."""
        return self._measurements("measurements.jsonl")

    def timings(self) -> tuple[Measurement, ...]:
        """What was timed on the machine's clock, in the order of taking."""
        return self._measurements("timings.jsonl")

    def event(self, time_s: float, kind: str, **fields: str | float | bool | None) -> None:
        """Add `{"time_s", "kind", ...fields}` to `events.jsonl`, fields by sorted name."""
        self._append("events.jsonl", {"time_s": time_s, "kind": kind} | dict(sorted(fields.items())), sort=False)

    def events(self) -> tuple[Mapping[str, Any], ...]:
        """What happened, in the order of writing, each with its `kind`. Raises UsageError for a damaged file."""
        events = self._lines("events.jsonl", dict[str, Any])
        for number, event in enumerate(events, start=1):
            if not isinstance(event.get("kind"), str):
                raise UsageError(f"{self.path / 'events.jsonl'}:{number} is no event: it has no kind; run again")
        return tuple(events)

    def finish_scenario(
        self, scenario: str, outcome: Outcome, reason: str = "", time_s: float = 0.0, *, plain: bool = False
    ) -> None:
        """Record the outcome of a scenario itself, so that a failed assertion fails the verdict too.

        `plain` is a test that uses neither hosts nor measurements.
        """
        kind = {"plain": True} if plain else {}
        self.event(time_s, "scenario", scenario=scenario, outcome=outcome.value, reason=reason, **kind)

    def note_problem(self, where: str, outcome: Outcome, reason: str) -> None:
        """Record what went wrong outside every scenario, such as a file of tests that cannot be imported."""
        self.event(0.0, "problem", scenario=where, outcome=outcome.value, reason=reason)

    def begin_session(self) -> None:
        """Record that tests begin. Until `end_session` the run is one whose tests were cut short."""
        self.event(0.0, _BEGAN)

    def end_session(self, outcome: Outcome = Outcome.PASS, reason: str = "") -> None:
        """Record that the tests of a session have ended; with PASS all of them were run, whatever came of them."""
        self.event(0.0, _ENDED, outcome=outcome.value, reason=reason)

    def last_session(self) -> Mapping[str, Any] | None:
        """The `outcome` and `reason` of the last session that has begun; None in a run without sessions of tests."""
        sessions = [event for event in self.events() if event.get("kind") in {_BEGAN, _ENDED}]
        if not sessions:
            return None
        cut = {"outcome": Outcome.INCONCLUSIVE.value, "reason": "its tests were cut short, or still run"}
        return sessions[-1] if sessions[-1]["kind"] == _ENDED else cut

    @property
    def finished(self) -> bool:
        """Whether the tests of the last session were all run. Such a run is read-only."""
        last = self.last_session()
        return last is not None and last.get("outcome") == Outcome.PASS.value

    def lose_host(self, host: str, reason: str) -> None:
        """Record that the run continued, or ended, without a host."""
        self.event(0.0, "host_lost", host=host, reason=reason)

    def lost_hosts(self) -> dict[str, str]:
        """The hosts that the run lost, and why."""
        lost = (event for event in self.events() if event.get("kind") == "host_lost")
        return {str(event.get("host")): str(event.get("reason")) for event in lost}

    def keep_scenarios(self, names: Collection[str]) -> None:
        """Drop the measurements and outcomes of all other scenarios, which are about to run again."""
        for file in ("measurements.jsonl", "timings.jsonl", "events.jsonl"):
            path = self.path / file
            if path.exists():
                lines = path.read_bytes().splitlines(keepends=True)
                scenarios = [_of(line, path, number) for number, line in enumerate(lines, start=1)]
                kept = {None, *names}
                files.replace(path, [line for line, of in zip(lines, scenarios, strict=True) if of in kept])

    def save_telemetry(self, job: str, records: Iterable[Record]) -> None:
        """Write the telemetry of a job to `telemetry/<job>.jsonl`, as `c4bench detect` reads it."""
        path = self.path / "telemetry" / f"{slug(job)}.jsonl"
        path.parent.mkdir(exist_ok=True)
        files.replace(path, to_lines(records))

    def evidence(self) -> dict[str, Path]:
        """What other tools have left of jobs of the run, by job: the folders in `evidence/`, and files beside them."""
        top = self.path / "evidence"
        folders = {path.name: path for path in sorted(top.glob("*")) if path.is_dir()}
        return folders or ({"": top} if top.is_dir() else {})

    def save(self, name: str, artefact: Any) -> Path:  # noqa: ANN401  (any struct msgspec can encode)
        """Write `artefacts/<name>.json`, whole or not at all.

        `name` is one word such as `fabric`, or `faults/nic_down` where several scenarios of a run have one each.
        """
        path = self._artefact(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, [encode(artefact), b"\n"])
        return path

    def write_page(self, name: str, text: str) -> Path:
        """Write a page such as `report.html`, whole or not at all; a link of that name is replaced, not followed."""
        path = self.path / name
        files.replace(path, [text.encode()])
        return path

    def load(self, name: str, kind: type[T]) -> T | None:
        """The artefact saved under `name`, None where there is none, UsageError where it is not a `kind`."""
        path = self._artefact(name)
        return self._read(path, kind) if path.exists() else None

    def load_all(self, name: str, kind: type[T]) -> dict[str, T]:
        """Every artefact of that word: by qualifier, in sorted order; the one without a qualifier is under `""`."""
        paths = sorted((self.path / "artefacts" / name).glob("*.json"))
        qualified = {path.stem: self._read(path, kind) for path in paths}
        plain = self.load(name, kind)
        return qualified if plain is None else {"": plain} | qualified

    def _artefact(self, name: str) -> Path:
        if not _ARTEFACT.fullmatch(name):
            raise UsageError(f"artefact name {name!r} is not WORD or WORD/WORD of letters, digits, '_', '.' and '-'")
        return self.path / "artefacts" / f"{name}.json"

    def _append(self, name: str, record: Any, *, sort: bool = True) -> None:  # noqa: ANN401
        line = (encode(record) if sort else msgspec.json.encode(record)) + b"\n"
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _measurements(self, name: str) -> tuple[Measurement, ...]:
        return tuple(line.measurement() for line in self._lines(name, MeasurementLine))

    def _lines(self, name: str, kind: type[T]) -> list[T]:
        path = self.path / name
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines()
        return [decode(line, kind, f"{path}:{number}") for number, line in enumerate(lines, start=1)]

    def _read(self, path: Path, kind: type[T]) -> T:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"{path} is missing; name a directory that a run has written") from None
        return decode(data, kind, str(path))


def _of(line: bytes, path: Path, number: int) -> str | None:
    """The scenario a line belongs to, None where it belongs to the run. Raises UsageError for what is no record."""
    scenario = decode(line, dict[str, Any], f"{path}:{number}").get("scenario")
    return None if scenario is None else str(scenario)


def slug(text: str) -> str:
    """`text` as a file name: runs of anything but letters, digits, '_', '.' and '-' become one '-'."""
    return _UNSAFE.sub("-", text).strip("-.") or "run"


def _fresh(root: Path, name: str) -> Path:
    """Make a directory that was not there; runs of the same second get a number."""
    path, attempt = root / name, 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            attempt += 1
            path = root / f"{name}-{attempt}"
        else:
            return path


def point(link: Path, target: str) -> None:
    """Make `link` a symlink to `target`; at every moment it points at a whole run."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


ROOT = Path("reports/runs")  # in the directory that a run is started from


def begin(
    path: Path | None, name: str, *, root: Path = ROOT, resume: bool = False, **facts: Unpack[Facts]
) -> RunDirectory:
    """Return the run directory `path`, or a new one under `root`; write its provenance if it has none.

    The run holds the directory as long as the returned object lives. Raises UsageError if another run holds it, if the
    run in `path` is finished and this is not to `resume` it, or if that was started in another environment: figures of
    two runs or two environments do not mix.
    """
    if path is None:
        run = RunDirectory.create(root, name)
    else:
        path.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(path)
    run.hold()
    refuse_finished(run, resume=resume)
    provenance = collect(name=run.path.name, started_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **facts)
    if not run.started:
        run.write_provenance(provenance)
    elif changed := differences(run.provenance().environment, provenance.environment):
        raise UsageError(f"{run.path} was started in another environment ({changed}); give another run directory")
    return run


def refuse_finished(run: RunDirectory, *, resume: bool) -> None:
    """Raises UsageError for a finished run, which stays as it is, unless what it has not run is to be added."""
    if run.finished and not resume:
        raise UsageError(
            f"{run.path} holds a finished run, which stays as it is; leave out --c4-run-dir for a new run, "
            "or add --c4-resume to run what this one has not"
        )


_LIMITS = ("at_least", "at_most", "equals", PLUS_MINUS)
_NEAR = 0.8  # of all letters


class Ledger:
    """The measurements of one scenario of a run."""

    def __init__(self, run: RunDirectory, scenario: str) -> None:
        self._run = run
        self._scenario = scenario
        self._taken: list[Measurement] = []

    @property
    def taken(self) -> tuple[Measurement, ...]:
        """The measurements recorded so far, in order."""
        return tuple(self._taken)

    def measure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        equals: float | None = None,
        clock: Clock = Clock.VIRTUAL,
        plus_minus: float = 0.0,
        **labels: str | int | float,
    ) -> Measurement:
        """Record `value` and its outcome against its limit; a value that is not finite is inconclusive.

        `plus_minus` is the error of the value, such as between two hosts' clocks; a limit is missed only beyond it.

        A missed limit raises nothing. Raises UsageError for two limits, and for a label that is a misspelt limit.
        """
        _check_labels(labels)
        number = float(value) if math.isfinite(value) else math.nan
        limit = _limit(at_least, at_most, equals)
        outcome = evaluate(number, limit, plus_minus)
        labels = labels | ({PLUS_MINUS: plus_minus} if plus_minus else {})
        measurement = Measurement(self._scenario, name, number, unit, limit, outcome, clock, labels)
        self._run.append(measurement)
        self._taken.append(measurement)
        return measurement

    def save(self, name: str, artefact: Any) -> None:  # noqa: ANN401  (any struct msgspec can encode)
        """Save this scenario's own artefact of that name, beside those of the run's other scenarios."""
        self._run.save(f"{name}/{slug(self._scenario)}", artefact)


def _check_labels(labels: Iterable[str]) -> None:
    """A label that is nearly the name of a limit was to be one; without it the measurement would judge nothing."""
    for label in labels:
        if near := get_close_matches(label, _LIMITS, n=1, cutoff=_NEAR):
            raise UsageError(f"{label!r} is no limit of a measurement; did you mean {near[0]}?")


def _limit(at_least: float | None, at_most: float | None, equals: float | None) -> str:
    bounds = [(sign, bound) for sign, bound in ((">=", at_least), ("<=", at_most), ("==", equals)) if bound is not None]
    if len(bounds) > 1:
        raise UsageError("a measurement has one limit; give one of at_least, at_most, equals")
    return "".join(f"{sign} {float(bound)!r}".removesuffix(".0") for sign, bound in bounds)
