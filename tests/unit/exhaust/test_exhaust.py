"""`c4bench exhaust` without a lab: trials and their order, packet lists, outcomes, the control plane, and shrinking."""

import os
import selectors
import threading
from collections import Counter

import msgspec
import pytest

from c4bench.cli.main import main
from c4bench.collective.rendezvous import EVERYBODY, AbsentError, FailedError
from c4bench.errors import UsageError
from c4bench.exhaust import attached, ledger, packets
from c4bench.exhaust.control_plane import Hub, TrialRendezvous
from c4bench.exhaust.harness import Sweep, _claim, tally
from c4bench.exhaust.ledger import Entry
from c4bench.exhaust.outcome import Outcome, RankEnd, judge
from c4bench.exhaust.packets import counts, digest, parse, same_until_event, text
from c4bench.exhaust.program import Program, topology
from c4bench.exhaust.shrink import Found, shrink, smallest
from c4bench.exhaust.trials import EVENTS, Counts, Event, Replay, Shard, chosen, ordered, read_replay
from c4bench.lab import topology_file
from c4bench.model.telemetry import Failure
from c4bench.workload.collectives import Call

LIST = """\
sent 1 100 h0r0 217 218 0 10 4200 -
received 1 150 h1r0 0 218 0 10 4200 -
sent 2 160 h1r0 218 217 0 17 62 {happened}
"""


def test_every_event_is_tried_at_every_packet_once():
    """The shards of an order together have each event at each of its packets once, and the seed changes the order."""
    known = Counts(sent=5, received=4)
    shards = [ordered(known, EVENTS, 1, Shard(number, 3)) for number in (1, 2, 3)]
    together = [event for shard in shards for event in shard]
    assert len(together) == len(set(together)) == 7 * 5 + 2 * 4
    assert {event.number for event in together if event.what == "far-after"} == {1, 2, 3, 4}
    assert (
        ordered(known, EVENTS, 1, Shard()) == ordered(known, EVENTS, 1, Shard()) != ordered(known, EVENTS, 2, Shard())
    )


def test_two_events_are_tried_at_every_two_packets():
    """A trial has both, and a repair comes some milliseconds after its loss; their name is the command's."""
    known = Counts(sent=5, received=4)
    tried = ordered(known, ["lost+far-after", "down-after+repaired"], 1, Shard())
    assert len(set(tried)) == 5 * 4 + 5 * 50
    assert {event.kind for event in tried} == {"lost+far-after", "down-after+repaired"}
    assert {str(event) for event in tried} >= {"lost:5+far-after:4", "down-after:1+repaired:50"}
    with pytest.raises(UsageError, match="smaller"):
        ordered(Counts(5000, 5000), ["lost+lost"], 1, Shard())


def test_a_nic_is_repaired_so_long_after_its_loss(tmp_path, monkeypatch):
    """Once the kernel's list shows an event; what the list has until then is kept, as the kernel begins a new one."""
    switch, listed = tmp_path / "switch", tmp_path / "list"
    monkeypatch.setattr(packets, "_SWITCH", switch)
    monkeypatch.setattr(packets, "_LIST", listed)
    event = Event("down-after", 2, Event("repaired", 20))
    packets.begin(event)
    assert switch.read_text() == "down-after:2"
    listed.write_text(LIST.format(happened="-"))
    repair = packets.Repair(event)
    repair.look(1.0)
    listed.write_text(LIST.format(happened="down-after"))
    repair.look(1.5)
    repair.look(1.51)
    assert switch.read_text() == "down-after:2"
    repair.look(1.53)
    assert switch.read_text() == "count"
    assert (repair.listed, repair.look_s) == (listed.read_text(), float("inf"))
    assert packets.Repair(Event("lost", 1)).look_s == float("inf")


def test_packet_lists_of_two_runs_are_compared_by_flow_and_order():
    """Queue pair and packet numbers and times do not matter, nor does what follows the event; another order does."""
    undisturbed = parse(LIST.format(happened="-"))
    renumbered = parse(LIST.format(happened="-").replace("217", "333").replace("218", "341"))
    assert digest(renumbered) == digest(undisturbed)
    assert digest(parse(LIST.format(happened="-").replace(" 0 10 ", " 77 10 ").replace(" 0 17 ", " 77 17 "))) == digest(
        undisturbed
    )
    assert digest(parse(LIST.format(happened="-").replace(" 0 17 ", " 1 17 "))) != digest(undisturbed)
    assert counts(undisturbed) == Counts(sent=2, received=1)
    assert text(undisturbed).splitlines()[1] == "received 1 150 h1r0 -1 1 0 10 4200 -"
    hit = parse(LIST.format(happened="lost") + "sent 3 170 h0r0 217 218 1 10 4200 -\n")
    assert same_until_event(hit, undisturbed)
    assert same_until_event(parse(LIST.format(happened="lost").replace(" 150 ", " 151 ")), undisturbed)
    swapped = LIST.format(happened="lost").splitlines(keepends=True)
    assert not same_until_event(parse("".join(swapped[index] for index in (1, 0, 2))), undisturbed)
    assert not same_until_event(undisturbed, undisturbed)


@pytest.mark.parametrize(
    ("ends", "killed", "verdict"),
    [
        ({0: RankEnd(8, 8), 1: RankEnd(8, 8)}, False, "exact"),
        ({0: RankEnd(8, 8), 1: RankEnd(0, 0, raised="x", status="RETRY_EXC_ERR")}, False, "loud"),
        ({0: RankEnd(7, 8), 1: RankEnd(0, 0, raised="x", status="ABORTED")}, False, "wrong"),
        ({0: RankEnd(8, 8, late=1), 1: RankEnd(8, 8)}, False, "wrong"),
        ({0: RankEnd(8, 8)}, False, "wrong"),
        ({0: RankEnd(8, 8)}, True, "wrong"),
        ({0: RankEnd(8, 8), 1: RankEnd(signal=9)}, True, "loud"),
        ({0: RankEnd(8, 8), 1: RankEnd(signal=9)}, False, "wrong"),
        ({0: RankEnd(8, 8), 1: RankEnd(raised="IndexError: pop", known=False)}, False, "wrong"),
        ({0: RankEnd(8, 8), 1: RankEnd(raised="x", status="TIMEOUT")}, False, "wrong"),
        ({0: RankEnd(8, 8), 1: RankEnd(raised="x", status="TIMEOUT")}, True, "loud"),
    ],
)
def test_outcomes(ends, killed, verdict):
    """Wrong elements, a rank without an end, a time-out and an unforeseen error are wrong; other errors are loud."""
    assert judge(ends, 2, 5.0, killed=killed).verdict == verdict


@pytest.fixture
def hub(tmp_path):
    """A control plane that serves from a thread; yields its path and what ranks have said at their end."""
    selector, said = selectors.DefaultSelector(), {}
    stop, wake = os.pipe()
    selector.register(stop, selectors.EVENT_READ, lambda: said.setdefault("stop", True))
    served = Hub(tmp_path / "hub", selector, said.__setitem__)

    def serve():
        while "stop" not in said:
            for key, _ in selector.select():
                key.data()

    thread = threading.Thread(target=serve)
    thread.start()
    yield str(tmp_path / "hub"), said
    os.write(wake, b"x")
    thread.join()
    served.close()
    os.close(stop)
    os.close(wake)


def in_thread(function, *arguments):
    """Call in a thread; join it for the answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function(*arguments)))
    thread.start()
    return lambda: (thread.join(), answers[0])[1]


def test_ranks_exchange_fail_and_pass_messages(hub):
    """An exchange gives all payloads or names who is missing; a failure reaches waiting, watching and later ranks."""
    path, said = hub
    ranks = [TrialRendezvous(path) for _ in range(3)]
    first = in_thread(ranks[0].exchange, "c", "k", 0, 2, b"a", 5.0)
    assert ranks[1].exchange("c", "k", 1, 2, b"b", 5.0) == first() == [b"a", b"b"]
    with pytest.raises(AbsentError) as absent:
        ranks[0].exchange("c", "other", 0, 3, b"", 0.01)
    assert absent.value.ranks == (1, 2)
    inboxes = [rank.relay("c", number) for number, rank in enumerate(ranks)]
    ranks[0].exchange("joined", "k", 0, 1, b"", 5.0)
    inboxes[0].send(EVERYBODY, b"hello")
    assert [inbox.poll() for inbox in inboxes[1:]] == [[b"hello"], [b"hello"]]
    signal = ranks[2].failure_signal("c")
    ranks[1].fail("c", Failure(1, "broken"), 1)
    assert signal.failure() == Failure(1, "broken")
    with pytest.raises(FailedError):
        ranks[0].exchange("c", "late", 0, 2, b"", 5.0)
    ranks[2].ended(2, RankEnd(3, 3))
    assert said[2] == RankEnd(3, 3)
    for link in (*ranks, *inboxes, signal):
        link.close()


def test_the_smallest_program_is_found():
    """Of programs that go wrong from 64 bytes on, in the second half of their packets, the smallest is found.

    No program is tried twice at a packet, nor one that does not go wrong at all of its packets.
    """
    tried = []

    def attempt(program, event):
        tried.append((program, event))
        bad = program.size_bytes >= 64 and event.number > program.ranks * 50
        return Outcome("wrong" if bad else "exact")

    program = Program("all_reduce", 8, 4096, 3, resilient=True, nics_each=3)
    start = Found(program, Event("lost", 790), Counts(800, 800), Outcome("wrong"))
    found = shrink(start, attempt, lambda program: Counts(program.ranks * 100, 0), tries=2000).program
    assert (found.ranks, found.operations, found.nics_each, found.slots) == (2, 1, 2, 1)
    assert 64 <= found.size_bytes < 128
    assert len(set(tried)) == len(tried)
    assert max(Counter(program for program, _ in tried).values()) < 2 * 50
    tried.clear()
    assert shrink(start, attempt, lambda _: Counts(1, 0), tries=7).program == start.program
    assert len(tried) == 7


def test_a_replay_is_of_what_goes_wrong_again():
    """Of a trial that does not, there is none; of a small program that goes wrong once, the larger one is kept."""
    program = Program("all_reduce", ranks=4, size_bytes=8)
    events = [Event("far-after", 3), Event("far-after", 5)]
    tried = []

    def attempt(tried_program, event):
        tried.append((tried_program, event))
        small_before = sum(each.ranks < program.ranks for each, _ in tried)
        wrong = event.number == 5 if tried_program == program else small_before == 1
        return Outcome("wrong" if wrong else "exact")

    def count(_):
        return Counts(1, 1)

    found = smallest(program, Counts(9, 9), events, attempt, count, tries=100)
    assert (found.program, found.event, found.outcome.verdict) == (program, events[1], "wrong")
    assert any(each.ranks < program.ranks for each, _ in tried)
    assert smallest(program, Counts(9, 9), events[:1], attempt, count, tries=100) is None


def test_an_attached_program_has_two_ends_with_two_nics():
    """A command is needed, and nothing else has one; its exit code says what came of it."""
    program = Program("attached", ranks=2, command=("exact", "send"))
    assert program.nics == 2
    assert program.title == "exact send, 2 ranks, 65536 B"
    assert (program.processes, Program("attached", 2, command=("env", "A=b", "mpirun.mpich", "x")).processes) == (2, 1)
    for kind, ranks, command in (("attached", 2, ()), ("attached", 3, ("exact",)), ("barrier", 2, ("exact",))):
        with pytest.raises(UsageError):
            Program(kind, ranks=ranks, command=command)


@pytest.mark.parametrize(("code", "verdict"), [(0, "exact"), (3, "wrong"), (2, "loud")])
def test_the_end_of_an_attached_program(tmp_path, monkeypatch, code, verdict):
    """0 is right and 3 is wrong; with another exit code its last line says why."""
    monkeypatch.setattr(attached, "_FOLDER", tmp_path)
    (tmp_path / "trial-0.txt").write_text("first\nno route\n")
    outcome = judge({0: attached.end(0, code), 1: RankEnd(1, 1)}, 2, 5.0, killed=False)
    assert outcome.verdict == verdict
    assert ("exit code 2: no route" in outcome.detail) == (code == 2)
    assert ("no route" in outcome.detail) == (code != 3)


def test_a_program_calls_what_it_says():
    """A pipeline's ranks receive from the left and send to the right; its fabric has a leaf for each NIC of a host."""
    pipeline = Program("pipeline", 3, 64)
    assert [[call.kind for call in pipeline.calls(rank)] for rank in range(3)] == [["send"], ["recv", "send"], ["recv"]]
    assert Program("all_to_all", 4, 64).calls(0) == [Call("all_to_all", count=4)]
    fabric = topology_file.parse(topology(Program("all_reduce", 4, resilient=True, nics_each=3)), "exhaust")
    assert [len(host.nics) for host in fabric.hosts] == [3, 3, 3, 3]
    assert {port.switch for port in fabric.ports} == {"leaf0", "leaf1", "leaf2"}


def test_a_ledger_is_continued(tmp_path):
    """Entries come back as they were written, without a line that was cut, and count by event and outcome."""
    entries = [
        Entry("exact", counts=Counts(2, 1), digest="a"),
        Entry("loud", Event("killed", 2), "rank 0: ABORTED", Counts(1, 1), placed=True),
        Entry("wrong", Event("lost", 1)),
    ]
    for entry in entries:
        ledger.append(tmp_path, entry)
    with (tmp_path / ledger.LEDGER_FILE).open("ab") as file:
        file.write(b'{"verdict":"ex')
    assert ledger.read(tmp_path) == entries
    counted = tally(ledger.read(tmp_path))
    assert (counted.runs, counted.wrong, counted.placed, counted.undisturbed) == (2, 1, 1, 1)
    assert counted.outcomes == {"lost": {"wrong": 1}, "killed": {"loud": 1}}
    own = Sweep(Program("barrier"), 1, EVENTS, Shard())
    _claim(own, tmp_path)
    _claim(msgspec.structs.replace(own, runs=5), tmp_path)
    with pytest.raises(UsageError, match="another"):
        _claim(msgspec.structs.replace(own, seed=2), tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["dance"],
        ["all_reduce", "--ranks", "1"],
        ["all_reduce", "--bytes", "-1"],
        ["all_reduce", "--events", "lost,found"],
        ["all_reduce", "--events", "repaired"],
        ["all_reduce", "--events", "lost+lost+lost"],
        ["all_reduce", "--shard", "3/2"],
        ["all_reduce", "--shard", "half"],
        ["all_reduce", "--before", "absent.py:function"],
        ["--replay", "absent.json"],
    ],
)
def test_bad_input_is_one_line(words, capsys, tmp_path):
    """A word that does not fit is named in one line with exit code 2, and no folder is made."""
    assert main(["exhaust", *words, "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_replay_is_read_back(tmp_path):
    """A replay file has program, seed and event; one that is cut is refused."""
    path = tmp_path / "replay.json"
    written = Replay(
        Program("all_reduce", 2, 64), 1, Event("lost", 3), 12, "wrong", "rank 0 has 1 of 16 elements wrong"
    )
    path.write_bytes(msgspec.json.encode(written))
    assert read_replay(path) == written
    path.write_bytes(msgspec.json.encode(written)[:-9])
    with pytest.raises(UsageError, match=r"replay\.json"):
        read_replay(path)


def test_events_are_chosen_by_name():
    """No names mean all events; the order is the kernel's."""
    assert chosen([]) == list(EVENTS)
    assert chosen(["far-after", "lost"]) == ["lost", "far-after"]
    assert chosen(["lost+lost", "lost"]) == ["lost", "lost+lost"]
