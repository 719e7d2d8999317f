"""What a master has saved about a job never keeps the next master from starting."""

import asyncio
import json

import pytest
from hostile_agent import SHARED, make_scene, playing

from c4bench.control.client import dial
from c4bench.errors import UnhealthyError
from c4bench.wire.messages import Hello, JobSpec, LaunchJob, StartRanks

WIDE = "\N{SQUARED COOL}" * 128


@pytest.fixture
def scene(tmp_path):
    """A master on this machine."""
    made = make_scene(tmp_path)
    yield made
    made.kill()


def restarted(scene):
    """The log of this master, and the health of the one after it."""
    scene.kill()
    scene.start()
    return scene.health()


async def start(scene, job):
    """What the master says to an operator who starts this job."""
    async with dial(scene.address, scene.trust, "operator") as master:
        with pytest.raises(UnhealthyError) as said:
            await master.start(LaunchJob(job))
    return str(said.value)


@pytest.mark.attack("a name of 128 characters of four bytes")
@pytest.mark.attack("variant: such a name from an agent")
def test_a_name_that_is_too_long_for_a_file_is_refused(scene):
    """It is refused in one line that says the limit in bytes, nothing is saved, and the next master starts."""
    for name in (WIDE, "\u00fc" * 65):
        said = asyncio.run(start(scene, JobSpec(name, "none", SHARED.members, SHARED.nics)))
        assert "is no id of a job" in said
        assert "128 bytes" in said
        assert "\n" not in said
    assert not (scene.folder / "state/state.json").exists()

    async def claim():
        async with scene.agent("h1") as peer:
            starts = StartRanks(JobSpec(WIDE, "none", SHARED.members, ()), (1,))
            await peer.call("hello", Hello("h1", "1", "", "", (starts,)), object)

    asyncio.run(claim())
    assert restarted(scene)["jobs"] == {}


@pytest.mark.attack("variant: such a name has been saved")
def test_a_saved_job_of_such_a_name_ends(scene):
    """A master that finds it in its state says so in its log, drops the job, and serves the others."""

    async def play():
        async with playing(scene, SHARED):
            scene.kill()
            state = json.loads((scene.folder / "state/state.json").read_text())
            wrong = json.loads(json.dumps(state["jobs"]["shared"]))
            wrong["spec"]["id"] = WIDE
            state["jobs"][WIDE] = wrong
            (scene.folder / "state/state.json").write_text(json.dumps(state))

    with pytest.raises(UnhealthyError):  # the master that was killed does not stop the job
        asyncio.run(play())
    scene.start()
    assert [*scene.health()["jobs"]] == ["shared"]
    assert any("is no id of a job" in line["message"] for line in scene.stop())
    assert [*json.loads((scene.folder / "state/state.json").read_text())["jobs"]] == ["shared"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff\xfe no entry\n", marks=pytest.mark.attack("variant: a damaged file of a job")),
        pytest.param(b"[" * 100_000 + b"\n", marks=pytest.mark.attack("variant: a job's file, deeply nested")),
    ],
)
def test_a_jobs_damaged_file_is_put_aside(scene, content):
    """The master starts, says which file it has put aside, and the job runs on."""

    async def play():
        async with playing(scene, SHARED):
            scene.kill()

    with pytest.raises(UnhealthyError):
        asyncio.run(play())
    (scene.folder / "state/jobs/shared.log").write_bytes(content)
    scene.start()
    assert [*scene.health()["jobs"]] == ["shared"]
    (line,) = [line for line in scene.stop() if line["level"] == "ERROR"]
    assert "shared.log is damaged" in line["message"]
    assert "shared.log.damaged" in line["message"]
    assert (scene.folder / "state/jobs/shared.log.damaged").read_bytes() == content
