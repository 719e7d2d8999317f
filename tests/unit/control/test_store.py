"""What the master writes down is there after a crash at any byte; what is damaged is refused by name."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.control.job_registry import JobRegistry
from c4bench.control.rendezvous import RendezvousService
from c4bench.control.store import FinishedExchange, RankResult, Store
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Component
from c4bench.model.fabric import Host, Nic
from c4bench.model.steering import Action, Policy
from c4bench.model.telemetry import Member
from c4bench.wire.messages import Exchange, Exchanged, Hello, JobSpec, LaunchJob, Result, StartRanks


def spec(name="j", ranks=2):
    nics = tuple(Nic(f"h{rank}", 0, "r", "n", "", 1e10) for rank in range(ranks))
    return JobSpec(name, "learning", tuple(Member(rank, f"h{rank}", (f"h{rank}/0",)) for rank in range(ranks)), nics)


def spare(name):
    return Host(name, "", (Nic(name, 0, "r", "n", "", 1e10),))


def hello(*starts, host="h0"):
    return Hello(host, "1", "", "", starts)


@pytest.fixture
def again(tmp_path):
    """A store, and the same one as the next master finds it."""
    held = []

    def open_again():
        while held:
            held.pop().close()
        held.append(Store(tmp_path))
        return held[-1]

    yield open_again
    while held:
        held.pop().close()


def test_jobs_and_hosts_out_are_known_to_the_next_master(again):
    """Its attempt, policy, spares and incidents' times among them."""
    register = JobRegistry(again(), adopt=True)
    register.enter(LaunchJob(spec(), Policy(hang=Action.RESTART), (spare("s0"),)))
    register.take_out(spare("h1"), Component("nic", "h1/0"), "j", 5.0)
    attempt = register.restart("j", {"h1": spare("s0")}, (), 6.0)
    state = again().state
    assert state.jobs["j"].spec == attempt
    assert (attempt.id, [member.host for member in attempt.members]) == ("j~1", ["h0", "s0"])
    assert (state.jobs["j"].policy.hang, state.jobs["j"].restarts_s) == (Action.RESTART, [6.0])
    assert (state.out["h1"].component, state.taken_s) == (Component("nic", "h1/0"), [5.0])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_log_cut_short_anywhere_loses_its_last_line_and_no_more(tmp_path_factory, data):
    """A crash in the midst of a write leaves what was written before, and what is written next is whole."""
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


def test_what_is_damaged_is_named_and_left_as_it_is(again, tmp_path):
    """Neither a torn state nor a foreign line is guessed at."""
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
    """The second is told so, and can have it when the first is gone."""
    first = Store(tmp_path)
    with pytest.raises(UnhealthyError, match="another master"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_a_host_that_comes_back_late_is_told_what_is_over(again):
    """Ranks of an attempt that was replaced or ended are to end; those of the present one go on."""
    register = JobRegistry(again(), adopt=True)
    register.enter(LaunchJob(spec()))
    assert register.welcome(hello(StartRanks(spec(), (0,)))) == ([], [])
    register.restart("j", {}, (), 1.0)
    assert register.welcome(hello(StartRanks(spec(), (0,)))) == ([], ["j"])
    register.over("k")
    assert register.welcome(hello(StartRanks(spec("k"), (0,)))) == ([], ["k"])


def test_a_master_without_memory_adopts_or_ends_what_it_finds(again):
    """With a folder of its own it adopts, from the agents' words; one that lives as long as a test ends it."""
    register = JobRegistry(again(), adopt=True)
    assert register.welcome(hello(StartRanks(spec("j~3"), (0,)))) == ([spec("j~3")], [])
    assert register.running("j").spec.id == "j~3"
    assert register.restart("j", {}, (), 1.0).id == "j~4"
    assert JobRegistry(Store(None), adopt=False).welcome(hello(StartRanks(spec(), (0,)))) == ([], ["j"])


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (LaunchJob(spec("a~1")), "no name for a job"),
        (LaunchJob(spec("../a")), "no name for a job"),
        (LaunchJob(spec("j")), "running already"),
        (LaunchJob(spec("k"), spares=(spare("h1"),)), "h1 has ranks and cannot be a spare"),
        (LaunchJob(spec("k", ranks=4)), "h3 is out of service"),
    ],
)
def test_what_cannot_be_started_is_refused_and_changes_nothing(again, launch, words):
    """In one line that says what is wrong."""
    register = JobRegistry(again(), adopt=True)
    register.enter(LaunchJob(spec()))
    register.take_out(spare("h3"), Component("host", "h3"), "j", 1.0)
    before = register.jobs()
    with pytest.raises(UsageError, match=words):
        register.enter(launch)
    assert register.jobs() == before


def test_a_host_put_back_is_a_spare_of_its_job(again):
    """It has left the job's members, and stands by from now on."""
    register = JobRegistry(again(), adopt=True)
    register.enter(LaunchJob(spec()))
    register.take_out(spare("h1"), Component("host", "h1"), "j", 1.0)
    register.put_back("h1")
    assert [host.name for host in again().state.jobs["j"].spares] == ["h1"]
    assert register.out() == ()


def test_answers_of_a_running_job_are_remembered_up_to_a_bound(again):
    """The latest thousand; a job that is over is forgotten with its file."""
    store = again()
    board = RendezvousService(store)
    board.admit("j")

    async def fill():
        for number in range(1030):
            await board.exchange(Exchange("j", "c", f"k{number}", 0, 1, b"x", 1.0))

    asyncio.run(fill())
    assert len(board._answered["j"]) == 1024
    assert len(store.entries("j")) == 1030
    store.forget("j")
    assert store.entries("j") == []
