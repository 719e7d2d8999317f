"""Saved state survives a crash at any byte, and a damaged file is refused by name."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.control.jobs.rendezvous import RendezvousService
from c4bench.control.state.registry import JobRegistry
from c4bench.control.state.store import FinishedExchange, RankResult, Store
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import Host, Nic
from c4bench.model.steering import Action, Policy
from c4bench.model.telemetry import Member
from c4bench.wire.messages import Exchange, Exchanged, Hello, JobSpec, LaunchJob, Meeting, Result, StartRanks


def spec(name="j", ranks=2, meeting=None):
    nics = tuple(Nic(f"h{rank}", 0, "r", "n", "", 1e10) for rank in range(ranks))
    members = tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(ranks))
    return JobSpec(name, "learning", members, nics, meeting=meeting)


def spare(name):
    return Host(name, "", (Nic(name, 0, "r", "n", "", 1e10),))


def hello(*starts, host="h0"):
    return Hello(host, "1", "", "", starts)


@pytest.fixture
def again(tmp_path):
    """Open the store; a second call opens it as the next master would."""
    held = []

    def open_again():
        while held:
            held.pop().close()
        held.append(Store(tmp_path))
        return held[-1]

    yield open_again
    while held:
        held.pop().close()


def test_the_next_master_knows_jobs_and_isolated_hosts(again):
    """Jobs with attempt, policy, spares and restarts, and isolated hosts, survive a restart of the master."""
    registry = JobRegistry(again(), adopt=True)
    registry.add(LaunchJob(spec(), Policy(hang=Action.RESTART), (spare("s0"),)))
    registry.isolate(spare("h1"), Component("nic", "h1/0"), "j", 5.0)
    attempt = registry.restart("j", {"h1": spare("s0")}, (), 6.0)
    state = again().state
    assert state.jobs["j"].spec == attempt
    assert (attempt.id, [member.host for member in attempt.members]) == ("j~1", ["h0", "s0"])
    assert (state.jobs["j"].policy.hang, state.jobs["j"].restarts_s) == (Action.RESTART, [6.0])
    assert (state.out["h1"].component, state.taken_s) == (Component("nic", "h1/0"), [5.0])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_log_cut_short_anywhere_loses_its_last_line_and_no_more(tmp_path_factory, data):
    """After a crash during a write, the entries before it are read, and the next entry is complete."""
    folder = tmp_path_factory.mktemp("state")
    store = Store(folder)
    entries = [FinishedExchange("c", f"k{n}", Exchanged((b"x" * n,))) for n in range(3)]
    entries += [RankResult(Result("j", n, {"kind": "k"}, n)) for n in range(3)]
    for entry in entries:
        store.append("j", entry)
    path = folder / "jobs/j.log"
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert store.entries("j") == entries[:kept]
    store.append("j", entries[0])
    assert store.entries("j") == [*entries[:kept], entries[0]]
    store.close()


def test_a_damaged_file_is_named_and_not_changed(again, tmp_path):
    """A damaged state or event file is an error that names it, and the file stays as it is."""
    again().save()
    (tmp_path / "state.json").write_bytes(b'{"jobs": 7}')
    with pytest.raises(UsageError, match=r"state.json is damaged"):
        again()
    assert (tmp_path / "state.json").read_bytes() == b'{"jobs": 7}'
    (tmp_path / "state.json").unlink()
    (tmp_path / "events.jsonl").write_bytes(b"not ours\n")
    with pytest.raises(UsageError, match=r"events.jsonl is damaged"):
        again().events()


def test_a_folder_has_one_master(tmp_path):
    """A second master is refused until the first has closed the folder."""
    first = Store(tmp_path)
    with pytest.raises(UnhealthyError, match="another master"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_a_late_agent_must_end_old_attempts(again):
    """When an agent connects, ranks of replaced or ended attempts must end, and those of the present one continue."""
    registry = JobRegistry(again(), adopt=True)
    registry.add(LaunchJob(spec()))
    assert registry.add_agent(hello(StartRanks(spec(), (0,)))) == ([], [])
    registry.restart("j", {}, (), 1.0)
    assert registry.add_agent(hello(StartRanks(spec(), (0,)))) == ([], ["j"])
    registry.end_attempt("k")
    assert registry.add_agent(hello(StartRanks(spec("k"), (0,)))) == ([], ["k"])


def test_a_new_master_adopts_or_ends_unknown_jobs(again):
    """A master with a state folder adopts unknown jobs that agents report, and one without a folder ends them."""
    registry = JobRegistry(again(), adopt=True)
    assert registry.add_agent(hello(StartRanks(spec("j~3"), (0,)))) == ([spec("j~3")], [])
    assert registry.running("j").spec.id == "j~3"
    assert registry.restart("j", {}, (), 1.0).id == "j~4"
    assert JobRegistry(Store(None), adopt=False).add_agent(hello(StartRanks(spec(), (0,)))) == ([], ["j"])


def test_an_agent_puts_no_job_into_a_meeting(again):
    """A job that an agent brings back is in no meeting, whatever the agent says: only its operator knows."""
    registry = JobRegistry(again(), adopt=True)
    claimed = spec("mine", meeting=Meeting("theirs", 9))
    assert registry.add_agent(hello(StartRanks(claimed, (0,)))) == ([spec("mine")], [])
    assert registry.running("mine").spec.meeting is None


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (LaunchJob(spec("a~1")), "no name for a job"),
        (LaunchJob(spec("../a")), "is no id of a job"),
        (LaunchJob(spec("j")), "running already"),
        (LaunchJob(spec("k"), spares=(spare("h1"),)), "h1 has ranks and cannot be a spare"),
        (LaunchJob(spec("k", ranks=4)), "h3 is out of service"),
        (LaunchJob(spec("k", meeting=Meeting("m", 1))), "2 ranks are too many for its meeting of 1"),
        (LaunchJob(spec("k", meeting=Meeting("m", 5))), "5 meet at 'm', but by job j 4 do"),
    ],
)
def test_a_job_that_cannot_start_is_refused(again, launch, words):
    """An invalid job is refused with its reason, and nothing changes."""
    registry = JobRegistry(again(), adopt=True)
    registry.add(LaunchJob(spec(meeting=Meeting("m", 4))))
    registry.isolate(spare("h3"), Component("host", "h3"), "j", 1.0)
    before = registry.health()
    with pytest.raises(UsageError, match=words):
        registry.add(launch)
    assert registry.health() == before


def test_a_host_put_back_is_a_spare_of_its_job(again):
    """A host that is put back becomes a spare of the job that it was taken from."""
    registry = JobRegistry(again(), adopt=True)
    registry.add(LaunchJob(spec()))
    registry.isolate(spare("h1"), Component("host", "h1"), "j", 1.0)
    registry.return_host("h1")
    assert [host.name for host in again().state.jobs["j"].spares] == ["h1"]
    assert registry.isolated() == ()


def test_a_limited_number_of_answers_is_kept(again):
    """The latest 1024 answers of a job are kept in memory, and its file is removed when it ends."""
    store = again()
    rendezvous = RendezvousService(store)
    rendezvous.admit("j")

    async def fill():
        for number in range(1030):
            await rendezvous.exchange(Exchange("j", "c", f"k{number}", 0, 1, b"x", 1.0))

    asyncio.run(fill())
    assert len(rendezvous._answered["j"]) == 1024
    assert len(store.entries("j")) == 1030
    store.forget("j")
    assert store.entries("j") == []


@pytest.mark.parametrize(
    ("job", "ranks", "host", "adopted"),
    [
        (spec("old"), (0,), "h0", True),
        (spec("../../x"), (0,), "h0", False),
        (spec("a\x00b"), (0,), "h0", False),
        (spec("x" * 200), (0,), "h0", False),
        (spec("old"), (0, 1), "h0", False),
        (spec("old"), (7,), "h0", False),
        (spec("old"), (), "h0", False),
        (spec("old"), (0,), "h9", False),
    ],
)
def test_an_agent_is_believed_only_what_it_may_know(again, job, ranks, host, adopted):
    """A job is adopted only with a possible id and ranks of the agent's own host; any other must end there."""
    registry = JobRegistry(again(), adopt=True)
    hello = Hello(host, "1", "c", "", (StartRanks(job, ranks),))
    found, ended = registry.add_agent(hello)
    assert ([known.id for known in found], ended) == (([job.id], []) if adopted else ([], [job.id]))
    assert (job.id in registry.jobs()) == adopted
