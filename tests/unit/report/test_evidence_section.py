"""The report's section on files of other tools, of a run directory that holds such files."""

import pytest

from c4bench.evidence.write import WRITERS, history
from c4bench.model.step import RankGroup, StepOp
from c4bench.record import RunDirectory
from c4bench.record.provenance import collect
from c4bench.report import render
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob


@pytest.fixture
def run(tmp_path):
    """A run directory without measurements."""
    made = RunDirectory.create(tmp_path, "main")
    provenance = collect(name="main", started_at="2031-03-04 09:12:31", command=["pytest"], seed=7, backend="local",
                         topology="", clock="machine")  # fmt: skip
    made.write_provenance(provenance)
    return made


def leave(folder, rank):
    """Dumps of a job of 16 ranks of which one hangs."""
    ops = (
        StepOp("all_reduce", 1 << 20, 0.01, RankGroup("tensor", 4, 1)),
        StepOp("all_gather", 1 << 20, 0.01, RankGroup("data", 4, 4)),
    )
    job = SimJob(16, ops, seed=3, window_s=0.5, ranks_per_host=2)
    windows = [one for tick in simulate(job, [SimFault(SimFaultKind.HUNG, rank, 0.5)], 1.5) for one in tick.windows]
    folder.mkdir(parents=True)
    for name, data in WRITERS["flight-recorder"](history(windows)):
        (folder / name).write_bytes(data)


def test_each_job_in_the_evidence_folder_is_judged(run):
    """For each folder of dumps the page names the rank, who waits for it, and the ranks by sequence number."""
    leave(run.path / "evidence/first", 6)
    leave(run.path / "evidence/second", 11)
    page = render(run.path).read_text()
    assert "rank job:6" in page
    assert "rank job:11" in page
    assert page.index("first: 16 ranks") < page.index("rank job:6") < page.index("second: 16 ranks")
    assert page.count("<caption>Ranks by sequence number</caption>") == 2
    tables = page.partition("second: 16 ranks")[2]
    waiting = tables.partition("<caption>Who waits for whom</caption>")[2].partition("</table>")[0]
    assert "<td>8-10</td><td>11</td>" in waiting
    by_number = tables.partition("<caption>Ranks by sequence number</caption>")[2].partition("</table>")[0]
    assert "<td>11</td></tr>" in by_number


def test_a_run_without_such_files_has_no_section(run):
    """The section is left out where there is nothing to judge."""
    assert "Files of other tools" not in render(run.path).read_text()
