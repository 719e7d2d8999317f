import re
from pathlib import Path

import pytest

from c4bench.errors import UsageError
from c4bench.model.measurement import Clock
from c4bench.record import Ledger, Provenance, RunDirectory
from c4bench.record.provenance import Environment
from tools.__main__ import main
from tools.documents.generated import markers
from tools.documents.readme import figures_page, rewrite
from tools.documents.readme_rows import HIGHLIGHTS, ROWS, Highlight, Row

BEGIN, END = markers("figures")
REPOSITORY = Path(__file__).parents[4]
SPEED = Row("`make lab`", "Speed", "speed", "link.*")
ALARM = Row("`make test`", "Alarm", "alarm_s", "faults.*", {"fault": ("kill", "stop")})
FIGURE = Highlight("Fast", "Speed", "an alarm after", "Alarm")
HEAD = "| {} | limit | measured |\n|---|---|---|\n"
FEW = "| `make lab`, `make test`, `make night` | measured | limit | beside it |\n|---|---|---|---|\n"
SOURCE = "Measured with c4bench 0.1.0, seed 1, Linux 7.3.4 in the lab. `make figures` rewrites this."


@pytest.fixture
def readme(tmp_path):
    path = tmp_path / "README.md"
    (tmp_path / "docs").mkdir()
    for document in (path, figures_page(path)):
        document.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    return path


@pytest.fixture
def make(tmp_path):
    """`make(name, minute)`: a run directory that was started in that minute."""

    def begin(name, minute, *, backend="softroce", topology="clos-2x4", kernel="7.3.4", **changes):
        run = RunDirectory.create(tmp_path / "runs", name)
        known = {"version": "0.1.0", "git_commit": "abc", "seed": 1} | changes
        run.write_provenance(
            Provenance(
                name=name,
                started_at=f"2026-01-01T00:{minute:02}:00Z",
                git_dirty=False,
                platform="Linux",
                command=("pytest",),
                backend=backend,
                topology=topology,
                clock="virtual",
                environment=Environment(kernel=kernel),
                **known,
            )
        )
        return run

    return begin


def speed(run, value, **rest):
    Ledger(run, "link.test").measure("speed", value, "1", at_least=0.9, **rest)


def alarm(run, value, fault):
    Ledger(run, "faults.test").measure("alarm_s", value, "s", at_most=2.0, fault=fault)


def block(document):
    return document.read_text().partition(BEGIN)[2].partition(END)[0].strip("\n")


def test_rows_of_two_runs_replace_the_block_and_nothing_else(readme, make):
    """docs/figures.md has each row with the worst of its measurements, README a few of them with one beside each."""
    one, two = make("one", 1), make("two", 2)
    speed(one, 0.95, low=0.91234, high=0.98765)
    for value, fault in ((0.2, "kill"), (0.3, "stop"), (1.9, "slow")):
        alarm(two, value, fault)
    lab = HEAD.format("`make lab`") + "| Speed | ≥ 0.9 | 0.95 (0.912 to 0.988) |"
    test = HEAD.format("`make test`") + "| Alarm | ≤ 2 s | 300 ms |"
    few = FEW + "| Fast | 0.95 (0.912 to 0.988) | ≥ 0.9 | an alarm after: 300 ms |"
    for _ in range(2):
        rewrite(readme, [one.path, two.path], [SPEED, ALARM], [FIGURE])
        assert readme.read_text() == f"before\n\n{BEGIN}\n\n{few}\n\n{SOURCE}\n\n{END}\n\nafter\n"
        full = f"before\n\n{BEGIN}\n\n{lab}\n\n{test}\n\n{SOURCE}\n\n{END}\n\nafter\n"
        assert figures_page(readme).read_text() == full


def test_the_newest_run_that_measured_a_row_counts(readme, make):
    """An older run's better value is not used, whatever the order on the command line; a missed limit is marked."""
    new, old = make("new", 2), make("old", 1)
    speed(new, 0.8)
    speed(old, 0.99)
    rewrite(readme, [new.path, old.path], [SPEED], [])
    assert "| Speed | ≥ 0.9 | **0.8**, missed |" in block(figures_page(readme))


def test_a_row_of_nights_stays_until_a_night_has_measured_it(readme, make):
    """By day its line is as before, also beside a figure of README; a night's run may be of another commit."""
    night = Row("`make night`", "Long", "long", "night.*", nightly=True)
    beside = Highlight("Fast", "Speed", "in the long run", "Long")
    day, dark = make("day", 1), make("dark", 2, git_commit="def")
    speed(day, 0.95)
    with pytest.raises(UsageError, match="run `make night`"):
        rewrite(readme, [day.path], [SPEED, night], [beside])
    Ledger(dark, "night.test").measure("long", 0.7, "1", at_least=0.5)
    rewrite(readme, [day.path, dark.path], [SPEED, night], [beside])
    measured = readme.read_text(), figures_page(readme).read_text()
    assert "| Long | ≥ 0.5 | 0.7 |" in measured[1]
    assert "| Fast | 0.95 | ≥ 0.9 | in the long run: 0.7 |" in measured[0]
    rewrite(readme, [day.path], [SPEED, night], [beside])
    assert (readme.read_text(), figures_page(readme).read_text()) == measured


def test_a_row_takes_machine_time_of_its_topology(readme, make):
    """A row may select by topology, needs no limit, and finds what the machine's clock told."""
    row = Row("t", "Boot", "lab.boot_s", "lab", topology="clos-2x4")
    for minute, (topology, boot_s) in enumerate({"clos-2x4": 6.3, "planes-2": 9.0}.items()):
        run = make(topology, minute, topology=topology)
        Ledger(run, "lab").measure("lab.boot_s", boot_s, "s", clock=Clock.MACHINE)
    rewrite(readme, (readme.parent / "runs").glob("*Z-*"), [row], [])
    assert "| Boot |  | 6.3 s |" in block(figures_page(readme))


@pytest.mark.parametrize(
    ("scenario", "name", "fault"),
    [("other.test", "alarm_s", "kill"), ("faults.test", "name_s", "kill"), ("faults.test", "alarm_s", "slow")],
)
def test_a_row_without_a_measurement_is_named(readme, make, scenario, name, fault):
    """A measurement of another scenario, name or label is not used, and the files keep their figures."""
    run = make("one", 1)
    Ledger(run, scenario).measure(name, 0.2, "s", at_most=2.0, fault=fault)
    before = readme.read_text() + figures_page(readme).read_text()
    with pytest.raises(UsageError, match=r"no run has alarm_s of faults\.\*, fault .*'Alarm'"):
        rewrite(readme, [run.path], [ALARM], [])
    assert readme.read_text() + figures_page(readme).read_text() == before


def test_a_measurement_without_a_value_is_refused(readme, make):
    """An inconclusive measurement is an error that names run and measurement, never a figure."""
    run = make("one", 1)
    speed(run, float("nan"))
    with pytest.raises(UsageError, match=r"one: speed of link\.test is inconclusive"):
        rewrite(readme, [run.path], [SPEED], [])


def test_several_measurements_without_a_limit_are_refused(readme, make):
    """None of them is the worst, so the row has to select one."""
    run = make("one", 1)
    for hosts in (2, 4):
        Ledger(run, "link.test").measure("speed", 1.0, "1", hosts=hosts)
    with pytest.raises(UsageError, match="2 measurements speed without a limit"):
        rewrite(readme, [run.path], [SPEED], [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"git_commit": "def"}, "commit: .* and .*"),
        ({"version": "0.2.0"}, "version"),
        ({"seed": 2}, "seed: "),
        ({"kernel": "6.1"}, "kernel: "),
    ],
)
def test_runs_that_differ_are_refused(readme, make, changes, words):
    """Figures of two commits, versions, seeds or lab kernels never stand in one table."""
    one, two = make("one", 1), make("two", 2, **changes)
    speed(one, 0.95)
    alarm(two, 0.2, "kill")
    with pytest.raises(UsageError, match=f"differ in {words}"):
        rewrite(readme, [one.path, two.path], [SPEED, ALARM], [])


def test_a_run_that_no_row_uses_may_differ(readme, make):
    """Older runs beside those of the last `make test` do no harm, and drills have neither seed nor kernel."""
    one, old, drills = make("one", 2), make("old", 1, git_commit="def"), make("d", 3, backend="namespaces", kernel="")
    speed(one, 0.95)
    speed(old, 0.99)
    alarm(drills, 0.2, "kill")
    rewrite(readme, [one.path, old.path, drills.path], [SPEED, ALARM], [])
    assert block(readme).endswith(SOURCE)
    assert block(figures_page(readme)).endswith(SOURCE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no figures here", f"{BEGIN} 0 times"),
        (f"{BEGIN}\n", f"{END} 0 times"),
        (f"{BEGIN}\n{BEGIN}\n{END}\n", f"{BEGIN} 2 times"),
        (f"{BEGIN}\n<!-- figures:stop -->\n", f"{END} 0 times"),
        (f"{END}\n{BEGIN}\n", "swap them"),
    ],
)
def test_a_file_without_the_markers_is_refused(readme, make, text, words):
    """A missing, doubled, misspelt or misplaced marker in either file is named, and both stay as they are."""
    run = make("one", 1)
    speed(run, 0.95)
    for document, other in ((readme, figures_page(readme)), (figures_page(readme), readme)):
        kept, before = document.read_text(), other.read_text()
        document.write_text(text)
        with pytest.raises(UsageError, match=re.escape(words)):
            rewrite(readme, [run.path], [SPEED], [])
        assert (document.read_text(), other.read_text()) == (text, before)
        document.write_text(kept)


def test_the_command_names_what_is_missing(readme, make, capsys):
    """`python -m tools readme` ends with the usage exit code and one line where a run lacks a row."""
    run = make("one", 1)
    speed(run, 0.95)
    assert main(["readme", str(readme), str(run.path)]) == 2
    assert "no run has" in capsys.readouterr().err


def test_every_row_is_measured_by_a_test_or_the_lab():
    """A measurement that was renamed or removed is noticed before anybody regenerates the figures."""
    places = [REPOSITORY / "c4bench/pytest_plugin", REPOSITORY / "tests/scenarios", REPOSITORY / "tests/drills"]
    source = "".join(path.read_text() for place in places for path in place.rglob("*.py"))
    assert [row.name for row in ROWS if f'"{row.name}"' not in source] == []


def first_cells(document):
    """The first cell of each line of the tables, and whether every line has a last one."""
    lines = [line.split(" | ") for line in block(document).splitlines() if line.startswith("| ")]
    assert all(cells[-1].removesuffix(" |").strip() for cells in lines)
    return [cells[0].removeprefix("| ") for cells in lines]


def test_the_documents_have_the_layout_of_measured_runs(readme, make):
    """From a run with a measurement for each row come README's lines and those of docs/figures.md, in their order."""
    run = make("all", 1)
    for row in ROWS:
        labels = {name: value[0] if isinstance(value, tuple) else value for name, value in row.labels.items()}
        Ledger(run, row.scenario.replace("*", "x")).measure(row.name, 1.0, "1", at_least=1, clock=Clock.NONE, **labels)
    rewrite(readme, [run.path])
    for written, document in ((readme, "README.md"), (figures_page(readme), "docs/figures.md")):
        assert first_cells(written) == first_cells(REPOSITORY / document)


def test_the_documents_have_every_row_in_order():
    """docs/figures.md has the declared rows, with a value each, and README six of them beside those of campaigns."""
    rows = [text for text in first_cells(REPOSITORY / "docs/figures.md") if not text.startswith("`")]
    assert rows == [row.text for row in ROWS]
    assert len(HIGHLIGHTS) == 6
    for highlight in HIGHLIGHTS:
        assert rows.count(highlight.row) == rows.count(highlight.beside_row) == 1
