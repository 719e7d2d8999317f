"""When the master probes for a doubt of C4D, what C4D gets of it, and when it stops."""

import asyncio
from types import SimpleNamespace

import pytest
from test_probe_sweeper import NICS, SPEC

from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.diagnosis import Finding
from c4bench.control.detection.probing import DoubtProber
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.fabric import Train
from c4bench.model.recording import (
    DeliveriesCounted,
    Delivery,
    HopsProbed,
    ProbingBegan,
    ProbingEnded,
    TimedFlow,
    TrainsTimed,
)

NAMES = [nic.name for nic in NICS]
# Two leaves and a link between them in each direction, behind which the far leaf answers.
ACROSS = {True: ("out", "on"), False: ("back", "home")}
PATHS = {(a, b, 7): (*ACROSS[a < b], f"to {b}") for a in NAMES[:4] for b in NAMES[4:] for a, b in ((a, b), (b, a))}
SUSPECTS = tuple(Component("link", hop) for hop in ACROSS[True])


@pytest.fixture
def probed():
    """Let a prober see a doubt where the first link is `dead`; return what C4D got, and what it names then."""

    def run(
        cause, *, dead=True, lost=100, agents=True, present=True, spent_before=False, narrow=False, suspects=SUSPECTS
    ):
        doubts, ingested, spent = Doubts(PATHS), [], []
        first, *others = suspects
        doubt = Finding(Syndrome.COMMUNICATION_HANG, cause, first, 1.0, 0.5, ("seen",), "", {}, tuple(others))
        doubts.hold(doubt, 2.0, 2.0, NAMES) or doubts.add(doubt, 2.0, NAMES)

        def crosses(path):
            return dead and SUSPECTS[0].name in PATHS[path]

        async def check(checks, _nics):
            hops = {one: PATHS[(*one.pair, one.source_port)] for one in checks}
            return {one: "" if crosses((*one.pair, one.source_port)) else hops[one][one.position] for one in checks}

        async def deliver(flows, _nics, packets):
            came = {flow: packets - lost if crosses(flow) else packets for flow in flows}
            return tuple(Delivery(*flow, packets, left, left, 0) for flow, left in came.items()) if agents else ()

        async def time_trains(flows, _nics, trains):
            times = {flow: 3.0 if narrow and flow[0] == NAMES[0] else 1.0 for flow in flows}
            came = {flow: (Train(1e-5, 8e-10 * longer),) * trains for flow, longer in times.items()}
            return tuple(TimedFlow(*flow, 1e10, 65536, trains, found) for flow, found in came.items() if agents)

        def ingest(attempt, record):
            assert attempt == record.job == "job~2"
            ingested.append(record)
            doubts.ingest(record)

        async def scene():
            note = SimpleNamespace(can_answer=lambda *_: not spent_before, note_answers=lambda *one: spent.append(one))
            paths = SimpleNamespace(
                survey=SimpleNamespace(check=check, deliver=deliver, time_trains=time_trains), controller=note
            )
            registry = SimpleNamespace(by_attempt=lambda _: SimpleNamespace(spec=SPEC) if present else None)
            prober = DoubtProber(registry, SimpleNamespace(doubts=lambda _: doubts, ingest=ingest), paths)
            for _ in range(2):
                prober.ask("job~2")
            await asyncio.sleep(0.01)
            prober.ask("job~2")
            await prober.release("job")

        asyncio.run(scene())
        answers = [answer for record in ingested if isinstance(record, HopsProbed) for answer in record.answers]
        assert len(spent) == sum(map(bool, answers))
        began = [record for record in ingested if isinstance(record, ProbingBegan)]
        assert ingested[: len(began)] == began
        return ingested[len(began) :], [one.suspects for one, _ in doubts.ended(0.0).name]

    return run


def kinds(ingested):
    """The kinds of records that C4D got."""
    return {type(record) for record in ingested}


def test_dead_links_in_series_take_both_kinds_of_probes(probed):
    """Several diagnoses are probed for once: numbered packets find what is dead, those that expire where."""
    ingested, named = probed(Cause.CONNECTION_STALLED)
    assert [type(record) for record in ingested] == [DeliveriesCounted, HopsProbed, ProbingEnded]
    assert named == [SUSPECTS[:1]]


def test_losses_are_counted_until_they_are_beyond_chance(probed):
    """Where only some packets are lost no switch is asked, since an answer would not clear anything."""
    ingested, named = probed(Cause.PACKETS_LOST, lost=1)
    assert kinds(ingested) == {DeliveriesCounted, ProbingEnded}
    assert named == []


def test_where_everything_arrives_the_doubt_stays(probed):
    """Nothing is named after probes that accuse nobody, and their number is limited."""
    ingested, named = probed(Cause.CONNECTION_STALLED, dead=False)
    assert [type(record) for record in ingested] == [DeliveriesCounted] * 4 + [ProbingEnded]
    assert named == []


def test_silence_of_a_switch_that_may_have_spent_its_answers_is_passed_on_as_such(probed):
    """C4D is told which silences mean nothing."""
    ingested, named = probed(Cause.CONNECTION_STALLED, spent_before=True)
    answers = {answer for record in ingested if isinstance(record, HopsProbed) for answer in record.answers}
    assert answers == {None}
    assert named == []


def test_without_agents_the_doubt_stays(probed):
    """Hosts whose agents are gone probe nothing: C4D is told that there will be no probes."""
    assert [type(record) for record in probed(Cause.PACKETS_LOST, agents=False)[0]] == [DeliveriesCounted, ProbingEnded]


def test_what_is_slow_is_sought_by_trains_alone(probed):
    """A doubt about slowness takes packet trains, until one suspect is far ahead or some rounds have shown nothing."""
    nics = tuple(Component("nic", name) for name in NAMES[:2])

    def trains(**stated):
        ingested, named = probed(Cause.TRANSFER_SLOW, suspects=nics, **stated)
        assert kinds(ingested) == {TrainsTimed, ProbingEnded}
        return len(ingested) - 1, named

    assert trains(narrow=True) == (1, [(Component("nic", NAMES[0], "tx"),)])
    assert trains() == (4, [])
    assert trains(agents=False) == (1, [])


def test_asking_says_what_it_cost(probed):
    """The last record has the packets and trains that were sent, and the share of a NIC's rate that they took."""
    *asked, ended = probed(Cause.PACKETS_LOST, lost=5)[0]
    sent = sum(200 * len(record.deliveries) for record in asked if isinstance(record, DeliveriesCounted))
    assert ended.packets == sent > 0
    assert ended.load_fraction > 0


def test_an_attempt_that_is_over_is_not_probed(probed):
    """Nothing is sent for an attempt that has ended."""
    assert probed(Cause.CONNECTION_STALLED, present=False) == ([], [])
