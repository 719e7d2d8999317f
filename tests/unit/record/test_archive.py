"""An archive has what a recording has, in files that Parquet's readers can read, and stays within its bounds."""

import json
from datetime import UTC, datetime

import duckdb
import pytest
from pyarrow import parquet

from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.cli.main import main
from c4bench.errors import UsageError
from c4bench.model.recording import Entry, Evaluated
from c4bench.model.step import StepOp
from c4bench.record import archive as module
from c4bench.record.archive import Archive, Bounds, read_archive
from c4bench.record.telemetry import to_lines
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

ROOMY = Bounds(1 << 30, 30.0)
RING = (StepOp("all_reduce", 4 << 20, 0.02), StepOp("all_to_all", 4 << 20, 0.0))
FAULT = SimFault(SimFaultKind.NIC_RATE, 2, 3.0, factor=0.25, side="rx")
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def records():
    """The records of a job with a slow receiver, as C4D ingests them."""
    found = []
    for tick in simulate(SimJob(5, RING, seed=8), [FAULT], 5.0):
        found += [*tick.windows, Evaluated(tick.time_s)]
    return found


def entries(records, since_s=0.0, attempt="job~1"):
    return [Entry(attempt, since_s, since_s + number, record) for number, record in enumerate(records)]


def files(folder, table="*"):
    return sorted(folder.glob(f"{table}/day=*/*.parquet"))


def test_detect_finds_in_an_archive_what_it_finds_in_the_recording(tmp_path, records, capsys):
    """Though records are spread over files, of two attempts at a time, and a master has been restarted between."""
    for first in range(0, len(records), 100):
        part = records[first : first + 100]
        mixed = [pair for pairs in zip(entries(part), entries(part, 7.0, "job~2"), strict=True) for pair in pairs]
        Archive(tmp_path / "archive", ROOMY).write(mixed, [], 1e9)
    (tmp_path / "job.jsonl").write_bytes(b"".join(to_lines(records)))
    found = []
    for path in ("archive", "job.jsonl"):
        assert main(["detect", str(tmp_path / path), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == 2 * found[1] != []
    assert len(files(tmp_path / "archive", "records")) == -(-len(records) // 100)


def test_an_attempt_is_judged_from_where_a_new_master_followed_it(tmp_path, records):
    """The detector that began again knew nothing of before, so neither does the one that reads the archive."""
    half = len(records) // 2
    Archive(tmp_path, ROOMY).write(entries(records[:half]), [], 1e9)
    Archive(tmp_path, ROOMY).write(entries(records[half:], 5.0), [], 1e9)
    followed, torn = read_archive(tmp_path)
    assert torn == 0
    assert [(one.attempt, one.since_s, one.records == part) for one, part in zip(
        followed, (records[:half], records[half:]), strict=True
    )] == [("job~1", 0.0, True), ("job~1", 5.0, True)]  # fmt: skip


def test_one_file_can_be_judged_by_itself(tmp_path, records):
    """Its windows have all names, though those of the file before had them too."""
    archive = Archive(tmp_path, ROOMY)
    for part in (records[:50], records[50:]):
        archive.write(entries(part), [], 1e9)
    (only,), _ = read_archive(files(tmp_path, "records")[1])
    assert only.records == records[50:]


def test_duckdb_reads_operations_and_findings_in_one_line(tmp_path, records):
    """Each operation that a rank finished is a row of numbers, and so is each finding; days are a column."""
    found = detect(records, Detector())
    Archive(tmp_path, ROOMY).write(entries(records), found, 1e9)
    finished = [op for record in records if not isinstance(record, Evaluated) for op in record.ops if op.finished_s]
    rows = duckdb.sql(
        f"SELECT comm, rank, kind, sequence, size_bytes, entered_ns / 1e9, finished_ns / 1e9 "
        f"FROM '{tmp_path}/operations/*/*.parquet'"
    ).fetchall()
    assert rows == [(op.comm, op.rank, op.kind, op.seq, op.size_bytes, op.entered_s, op.finished_s) for op in finished]
    named = duckdb.sql(f"SELECT component, confidence, day FROM '{tmp_path}/findings/*/*.parquet'").fetchall()
    day = datetime.fromtimestamp(1e9, UTC).date()
    assert named == [(str(one.component), one.confidence, day) for one in found] != []


def test_a_folder_of_several_days_is_one_table(tmp_path, records):
    """What pandas reads it with makes one table of all files, as they come from masters that know other names."""
    archive = Archive(tmp_path, ROOMY)
    archive.write(entries(records[:100]), [], 1e9)
    archive.write(entries(records[100:], attempt="job~2"), [], 1e9 + DAY_S)
    table = parquet.read_table(tmp_path / "operations")
    assert set(table.column("day").to_pylist()) == {"2001-09-09", "2001-09-10"}
    assert set(table.column("attempt").to_pylist()) == {"job~1", "job~2"}


def test_a_week_takes_no_more_than_its_bound(tmp_path, records):
    """The oldest files go, days that are empty with them; the newest stay, and numbers go on."""
    archive = Archive(tmp_path, ROOMY)
    archive.write(entries(records[:100]), [], 0.0)
    bound = 5 * sum(path.stat().st_size for path in files(tmp_path))
    archive, sizes = Archive(tmp_path, Bounds(bound, 365.0)), []
    for number in range(7 * 6):
        archive.write(entries(records[:100]), [], number * DAY_S / 6)
        sizes.append(sum(path.stat().st_size for path in files(tmp_path)))
    assert max(sizes) <= bound < 2 * min(sizes[5:])
    assert files(tmp_path, "records")[-1].stem == f"{7 * 6:08}"
    assert len(list(tmp_path.glob("records/*"))) <= 2
    assert Archive(tmp_path, ROOMY)._next == 7 * 6 + 1


def test_old_days_go_and_todays_stay(tmp_path, records):
    """By age, however small the files are."""
    archive = Archive(tmp_path, Bounds(1 << 30, 2.0))
    for day in range(6):
        archive.write(entries(records[:10]), [], day * DAY_S)
    assert [path.parent.name for path in files(tmp_path, "records")] == [f"day=1970-01-0{day}" for day in (4, 5, 6)]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 5000, b"\xa1\xff"])
def test_a_row_that_cannot_be_read_is_counted(tmp_path, records, body):
    """One damaged row, however it is damaged, does not hide the others."""
    Archive(tmp_path, ROOMY).write(entries(records[:10]), [], 1e9)
    (path,) = files(tmp_path, "records")
    table = parquet.read_table(path, partitioning=None)
    bodies = [*table.column("body").to_pylist()[:-1], body]
    column = table.schema.get_field_index("body")
    parquet.write_table(table.set_column(column, table.schema.field(column), [bodies]), path)
    (followed,), torn = read_archive(tmp_path)
    assert (len(followed.records), torn) == (table.num_rows - 1, 1)


def test_what_is_no_archive_is_refused_in_one_line(tmp_path):
    """A file that is no Parquet file is named."""
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=r"torn\.parquet: .*; give an archive of c4bench master"):
        read_archive(torn)
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(UsageError, match="give a folder that can be written to"):
        Archive(tmp_path / "plain" / "archive", ROOMY)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    """Whoever has not installed it learns which extra has it."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        module.Archive(tmp_path, ROOMY)
