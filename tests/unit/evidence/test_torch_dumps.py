"""Verdicts on dumps of real PyTorch jobs, whose faults the script that made them has written down."""

import json
import random

import jsonschema
import pytest

from c4bench.cli.main import main
from c4bench.evidence.collect import collect
from c4bench.evidence.judging.judge import judge
from tools.documents.schemas import schemas

VERSIONS = ("2.8.0", "2.11.0", "2.14.1")
# A rank that gloo aborts over a size leaves no file, so that only its absence is seen.
ABORTED = {"size": "not_entered"}


def dumps(folder, form):
    return [path for path in sorted(folder.glob("rank_*")) if (path.suffix == ".json") == (form == "json")]


def cases(torch_dumps, version):
    return sorted((torch_dumps / f"torch-{version}").iterdir())


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("version", VERSIONS)
def test_real_dumps_name_the_right_ranks(torch_dumps, version, form):
    """In every fault of a real PyTorch job, the verdict names the rank at fault and what it did."""
    said = {}
    for folder in cases(torch_dumps, version):
        truth = json.loads((folder / "truth.json").read_text())
        report = judge(collect(dumps(folder, form)))
        assert report.problems == ()
        assert report.ranks == truth["ranks"]
        wrong = ABORTED.get(folder.name, truth["wrong"].replace("no_file", "not_entered"))
        assert [verdict.diagnosis.cause for verdict in report.verdicts] == ([wrong] if wrong else []), folder.name
        for verdict in report.verdicts:
            said[folder.name] = sorted(verdict.culprits) == truth["culprits"]
            assert set(truth["culprits"]) <= set(verdict.culprits)
            assert verdict.diagnosis.component.kind == "job" or verdict.diagnosis.component.name == (
                f"job:{truth['culprits'][0]}"
            )
            if truth["wrong"] == "no_file":
                assert verdict.no_file == tuple(truth["culprits"])
    # Of two ranks that call in different order, neither is right by itself.
    assert [name for name, exact in said.items() if not exact] == ["order"]
    assert len(said) == 16


def test_real_ranks_that_run_ahead_are_told_from_those_that_stopped(parallel_dumps):
    """Of real ranks that call without waiting, in groups of several kinds, those that stopped are named.

    One of two that stopped waits for the other, or is ahead of it: with timing and without, all calls or open ones.
    """
    named = {}
    for folder in sorted(parallel_dumps.iterdir()):
        truth = json.loads((folder / "truth.json").read_text())
        report = judge(collect(sorted(folder.glob("rank_*"))))
        assert (report.problems, report.ranks) == ((), truth["ranks"])
        named[folder.name] = [verdict.culprits for verdict in report.verdicts]
        assert named[folder.name] == [(rank,) for rank in truth["culprits"]], folder.name
    assert len(named) == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_torchfrtrace_does_not_read_dumps_of_gloo(torch_dumps, version):
    """PyTorch's own analyser fails on the same files, which is why its answer is not the truth here."""
    for folder in cases(torch_dumps, version):
        answers = json.loads((folder / "torchfrtrace.json").read_text())
        assert {form: answer["exit_code"] for form, answer in answers.items()} == {"pickle": 1, "json": 1}


def test_a_rank_in_a_group_is_found_through_the_ranks_that_wait_for_it(torch_dumps, capsys):
    """The chain of waiting leads over two communicators to the rank that never came."""
    folder = torch_dumps / "torch-2.14.1" / "groups_16"
    assert main(["detect", "--explain", *map(str, dumps(folder, "pickle"))]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("    >")]
    assert len(lines) == 2
    assert lines[-1].endswith("for rank 6")


def test_json_keeps_to_its_schema(torch_dumps, capsys):
    """The printed report is what its published schema says, with other tools' words beside the cause."""
    folder = torch_dumps / "torch-2.11.0" / "type"
    assert main(["detect", "--json", *map(str, dumps(folder, "json"))]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, json.loads(schemas()["evidence.schema.json"]))
    assert [one["torchfrtrace"] for one in printed["verdicts"]] == ["COLLECTIVE_TYPE_MISMATCH"]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_missing_file_leaves_the_rest_enough(torch_dumps, form):
    """With a healthy rank's file lost, the rank that did not come is still named, and the lost one is mentioned."""
    folder = torch_dumps / "torch-2.14.1" / "hang_16"
    report = judge(collect([path for path in dumps(folder, form) if path.stem != "rank_3"]))
    assert [verdict.culprits for verdict in report.verdicts] == [(11,)]
    assert report.verdicts[0].no_file == (3,)


def test_the_missing_file_of_the_rank_at_fault_is_suspected(torch_dumps):
    """If the rank that did not come left no file either, it is among the suspects, and no rank alone is accused."""
    folder = torch_dumps / "torch-2.14.1" / "hang_16"
    left = [path for path in dumps(folder, "pickle") if path.stem not in {"rank_11", "rank_4"}]
    (verdict,) = judge(collect(left)).verdicts
    assert verdict.culprits == (4, 11)
    assert not verdict.sure
    assert verdict.diagnosis.component.kind == "job"


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_folder_is_judged_from_what_is_left(torch_dumps, tmp_path, seed):
    """With files cut at any byte, empty, lost, doubled or in both forms, the verdict is right or says among whom."""
    rng = random.Random(seed)
    folder = torch_dumps / "torch-2.14.1" / "hang_16"
    damaged = rng.sample(range(16), 4)
    for rank in range(16):
        path = folder / f"rank_{rank}{rng.choice(('', '.json'))}"
        data = path.read_bytes()
        if rank in damaged:
            data = rng.choice((data[: rng.randrange(1, len(data))], b"", data))
            (tmp_path / f"copy_{path.name}").write_bytes(data)
        if rank not in damaged or rng.random() < 0.5:
            (tmp_path / path.name).write_bytes(data)
    (verdict,) = judge(collect([tmp_path])).verdicts
    assert 11 in verdict.culprits
    assert len(verdict.culprits) == 1 or (not verdict.sure and verdict.diagnosis.component.kind == "job")
