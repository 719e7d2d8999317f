"""A run directory that is used again."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from c4bench.errors import UsageError
from c4bench.model.measurement import Outcome
from c4bench.record import RunDirectory, begin


@dataclass
class Again:
    """A run that has begun, and another command that is to write to the same directory."""

    path: object

    def begin(self, command="first", **rest):
        words = {"seed": 1, "backend": "softroce", "topology": "pair", "clock": "virtual"}
        return begin(self.path, "main", command=[command], **words, **rest)


@pytest.fixture
def again(tmp_path):
    return Again(tmp_path / "run")


def test_a_run_goes_on_in_the_environment_it_began_in(again):
    """What the first command has written of itself stays: the second adds to its run."""
    written = again.begin().provenance()
    assert again.begin("second").provenance() == written


def test_a_finished_run_is_not_added_to(again):
    """It is refused in one line with the way out, unless what it has not run is to be added; one cut short goes on."""
    run = again.begin()
    run.begin_session()
    del run
    again.begin().end_session()
    with pytest.raises(UsageError, match=r"holds a finished run, which stays as it is; leave out --c4-run-dir"):
        again.begin()
    again.begin(resume=True).end_session(Outcome.INCONCLUSIVE, "interrupted")
    again.begin()


def test_a_run_of_another_environment_is_not_added_to(again):
    """It is refused in one line that names what differs and the way out, and run.json is as it was."""
    first = again.begin()
    made = first.provenance()
    other = replace(made, environment=replace(made.environment, rdma_core="1.0-1"))
    first.write_provenance(other)
    del first
    now = made.environment.rdma_core or "none"
    with pytest.raises(UsageError) as refused:
        again.begin("second")
    said = str(refused.value)
    assert "\n" not in said
    assert f"{again.path} was started in another environment (rdma-core 1.0-1, now {now})" in said
    assert "give another run directory" in said
    assert RunDirectory(again.path).provenance() == other


def test_the_build_of_the_kernel_may_be_another(again):
    """It is c4bench's own doing, like its code, and figures are compared across it."""
    first = again.begin()
    made = first.provenance()
    first.write_provenance(replace(made, environment=replace(made.environment, kernel_build="kernel-b")))
    del first
    assert again.begin("second").path == again.path
