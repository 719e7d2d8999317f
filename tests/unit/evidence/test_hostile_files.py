"""Files that are damaged, bombs, or meant to run code: an answer in one line, within bounds, and nothing run."""

import gzip
import pickle
import tracemalloc
from pathlib import Path

import pytest
from evidence_mutations import Canary, bomb, escapes, originals

from c4bench.cli.main import main
from c4bench.evidence import limits
from c4bench.evidence.collect import collect, parse
from c4bench.evidence.limits import MOST_BYTES, UnreadableError

# What a file of the largest size may take: its bytes, those decompressed, and the data made of them.
MOST_MEMORY = 4 * MOST_BYTES


def test_damaged_files_have_an_answer(tmp_path):
    """No damage to files of any format makes a reader or the judgement fail, or runs anything."""
    assert escapes(1500, tmp_path, seed=31) == []


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_refused(tmp_path, protocol):
    """A pickle that `pickle` would run is refused with the opcode that wants to, and runs nothing."""
    canary = tmp_path / "canary"
    evil = pickle.dumps({"entries": [Canary(canary)]}, protocol)
    pickle.loads(evil)
    assert canary.exists()
    canary.unlink()
    path = tmp_path / "trace_rank_0"
    path.write_bytes(evil)
    reading = collect([path])
    assert not canary.exists()
    assert len(reading.problems) == 1
    assert reading.sources == ()
    if protocol >= 2:
        assert "wants to run code" in reading.problems[0].reason


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"]" * 100_000 + b".",
        b"\x80\x02" + b"](" * 40_000 + b"e" * 40_000 + b".",
        b"\x80\x02K\x01r\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02\x8d" + b"\xff" * 8 + b".",
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
        b'{"entries":' + b"[" * 200_000,
        b'{"entries":[' + b"{}," * 2_000_000 + b"{}]}",
        b'{"pg_config":{},"entries":[{"collective_seq_id":' + b"9" * 100_000 + b"}]}",
        b'{"traceEvents":[' + b"0," * 5_000_000 + b"0]}",
        b'{"pg_config":{"0":{"ranks":"[' + b"1," * 30_000 + b']"}},"entries":[]}',
    ],
    ids=[
        "lists",
        "nested",
        "memo",
        "text",
        "long text",
        "integer",
        "nested JSON",
        "objects",
        "digits",
        "numbers",
        "ranks",
    ],
)
def test_bombs_stay_within_memory(tmp_path, data):
    """Deep nesting, huge lengths and huge numbers take no more memory than the bounds allow."""
    path = tmp_path / "trace_rank_0"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        collect([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    """A small gzip file that becomes larger than the bound is refused before it does."""
    path = tmp_path / "trace_rank_0.json.gz"
    path.write_bytes(bomb(32 << 20))
    assert path.stat().st_size < 1 << 16
    monkeypatch.setattr(limits, "MOST_BYTES", 8 << 20)
    (problem,) = collect([path]).problems
    assert "when decompressed" in problem.reason


@pytest.mark.parametrize("name", sorted({name for name, _ in originals()}))
def test_sound_files_are_read(name):
    """The files that are damaged above are read when they are whole."""
    data = dict(originals())[name]
    data = gzip.decompress(data) if name.endswith(".gz") else data
    reading = parse(data, Path(name))
    assert reading.sources
    assert reading.members
    assert reading.problems == ()


def test_files_that_cannot_be_used_are_named_and_the_rest_is_judged(torch_dumps, tmp_path, capsys):
    """Of a folder with empty, cut, doubled, foreign and hostile files, the sound ones are judged; exit code 2."""
    folder = torch_dumps / "torch-2.14.1" / "hang_4"
    whole = (folder / "rank_0").read_bytes()
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes((folder / f"rank_{rank}").read_bytes())
    odd = {"empty_5": b"", "cut_6": whole[: len(whole) // 2], "rank_0_copy": whole, "notes.txt": b"hello"}
    for name, data in odd.items():
        (tmp_path / name).write_bytes(data)
    assert main(["detect", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "to blame: ranks 2" in out
    assert {line.split(": ")[1].rpartition("/")[2] for line in err.splitlines()} == odd.keys() - {"rank_0_copy"} | {
        "rank_0_copy"
    }


@pytest.mark.parametrize("what", ["nothing", "empty folder", "no such file"])
def test_nothing_to_read_is_one_line(tmp_path, capsys, what):
    """Where no file can be read, the command ends with code 2 and says of each path why."""
    (tmp_path / "a").mkdir()
    paths = {"nothing": [tmp_path / "a", tmp_path / "b"], "empty folder": [tmp_path / "a"],
             "no such file": [tmp_path / "b", tmp_path / "c"]}  # fmt: skip
    assert main(["detect", *map(str, paths[what])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(str(path) in err for path in paths[what])
    assert ("the folder has no files" in err, "there is no such file or folder" in err) == (
        what != "no such file",
        what != "empty folder",
    )


def test_two_jobs_in_one_folder_are_noticed(torch_dumps, tmp_path):
    """Files of a job of another size are named and not used; the job of most files is judged."""
    for name, case in (("x", "hang_16"), ("y", "hang_2")):
        for path in (torch_dumps / "torch-2.14.1" / case).glob("rank_*"):
            if not path.suffix:
                (tmp_path / f"{name}_{path.name}").write_bytes(path.read_bytes())
    reading = collect([tmp_path])
    assert len(reading.problems) == 2
    assert all("its job has 2 ranks" in problem.reason for problem in reading.problems)
    assert len(reading.sources) == 16


def test_a_rank_that_does_not_come_from_the_name_is_said():
    """A dump does not hold its rank, so one without a number in its name cannot be used."""
    data = dict(originals())["rank_1"]
    with pytest.raises(UnreadableError, match="which rank it is of"):
        parse(data, Path("dump"))
