"""Both ends of a connection go on at other NICs; the NICs carry requests in one process, the agent's relay is real."""

import asyncio
import os
import random
import re
import socket
import subprocess
from functools import partial
from pathlib import Path

import failover_mutants
import msgspec
import pytest
from night_cases import at_night

from c4bench.attach import build
from c4bench.attach.relay import WordRelay
from c4bench.attach.server import AttachServer, user_ids
from c4bench.model.fabric import Nic
from tools import fake_verbs

HERE = Path(__file__).parent
NICS = [Nic("h", index, f"nic{index}", f"n{index}", f"10.{index}.0.1", 1e10) for index in range(6)]
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the driver and of its libibverbs."""
    if why := fake_verbs.obstacle():
        pytest.skip(f"no-compiler: {why}")
    build.build()
    place = tmp_path_factory.mktemp("fabric")
    fake_verbs.compile_library(place, "fabric.c")
    fake_verbs.compile_program(HERE / "driver.c", place)
    return place


def few(count):
    """Seeds, those after the first for the night."""
    return [1, *at_night(*range(2, count + 1))]


class _Follower:
    async def follow(self):
        await asyncio.sleep(WITHIN_S)


@pytest.fixture
def play(built, tmp_path):
    """Play a part of the driver for some seeds; returns what came of each, and what the library said."""

    async def run(what, first, last, *, agent=True, relay=WordRelay, **environment):
        server = AttachServer(
            tmp_path / "agent",
            user_ids([]),
            lambda _, descriptor: os.close(descriptor),
            None,
            lambda *_: _Follower(),
            relay(NICS, None),
        )
        async with await server.start():
            own = {
                "LD_LIBRARY_PATH": str(built),
                "LD_PRELOAD": str(build.library("failover")),
                "C4BENCH_ATTACH_SOCKET": str(tmp_path / ("agent" if agent else "none")),
                "C4BENCH_FAILOVER": "nic0=nic1,nic2=nic3",
            }
            words = [built / "driver", what, str(first), str(last)]
            process = await asyncio.create_subprocess_exec(
                *words, env=os.environ | own | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            said, problems = await asyncio.wait_for(process.communicate(), WITHIN_S)
        return said.decode().splitlines(), problems.decode()

    return lambda *words, **options: asyncio.run(run(*words, **options))


@pytest.mark.parametrize(
    ("what", "first", "last"),
    [
        *(("loss", 1, 12), ("counts", 1, 4), ("shared", 1, 6), ("oneway", 1, 4)),
        *at_night(("loss", 13, 40), ("counts", 5, 10), ("shared", 7, 20), ("oneway", 5, 10)),
    ],
)
def test_a_nic_is_lost(play, what, first, last):
    """At any moment, with an event or not, at either end: each request is carried out once, completions are in order.

    Also where the NIC does not say which packet it expects, then of what is received; with shared receive queues; and
    with a queue pair that only receives.
    """
    found, _ = play(what, first, last)
    assert found == ["exact, moved"] * (last - first + 1)


def test_nothing_moves_without_a_failure(play):
    """The NICs that were opened are used, also while a program waits for nothing, or does not look for it."""
    assert play("none", 1, 3)[0] == ["exact"] * 3
    assert play("pause", 1, 1)[0] == ["exact"]
    assert play("away", 1, 1)[0] == ["exact"]


@pytest.mark.parametrize(
    ("what", "comes"), [("balance", "exact, moved"), ("faster", "exact, moved"), ("alone", "exact")]
)
def test_load_is_shared_by_weight(play, what, comes):
    """Two of four queue pairs go to a NIC of the same rate, three to one of four times the rate; a single one stays."""
    assert play(what, 1, 5, C4BENCH_BALANCE="1")[0] == [comes] * 5


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1, 51, 5))
def test_a_nic_is_lost_where_load_is_shared(play, first):
    """Any of them, and another one after its repair: each request is carried out once."""
    assert play("balanced", first, first + 4, C4BENCH_BALANCE="1")[0] == ["exact, moved"] * 5


@pytest.mark.parametrize("seed", few(4))
def test_load_of_a_lost_nic_is_spread_over_the_others(play, seed):
    """Each has one twin, so what is there moves on to the next one."""
    twins = "nic0=nic1,nic1=nic4,nic4=nic0,nic2=nic3,nic3=nic5,nic5=nic2"
    assert play("ring", seed, seed, C4BENCH_BALANCE="1", C4BENCH_FAILOVER=twins)[0] == ["exact, moved"]


class _WithoutEarlyGreetings(WordRelay):
    """What the first NIC's queue pairs say before they have connected their twins is lost."""

    def _send(self, word):
        if not (word.source == NICS[0].address and re.search(r" hello .* [01] \d+$", word.word)):
            super()._send(word)


def test_an_end_that_was_greeted_late_answers(play):
    """The other end may prove and use their twins then, also where it alone sends."""
    found, _ = play("receiver", 1, 3, relay=_WithoutEarlyGreetings, C4BENCH_BALANCE="1")
    assert found == ["exact, moved"] * 3


def test_load_is_shared_only_when_asked_for(play):
    """Else all queue pairs stay at the program's own NIC."""
    assert play("balance", 1, 2)[0] == ["0 of 4 queue pairs are at the other NIC"] * 2


@pytest.mark.parametrize("seed", few(3))
def test_a_repaired_nic_is_used_again(play, seed):
    """Then it also goes on where its twin has failed meanwhile."""
    assert play("return", seed, seed)[0] == ["exact, moved"]
    assert play("second", seed, seed)[0] == ["exact, moved"]


@pytest.mark.parametrize("seed", few(3))
def test_a_connection_stays_where_the_peers_nic_has_failed(play, seed):
    """It does not return to its own NIC, though that is well: the way there is proven once more before it leaves."""
    assert play("broken", seed, seed)[0] == ["exact, moved"]


def test_a_peer_ends_in_the_middle_of_a_move(play):
    """What has come there is complete at the sender, whose NIC has failed before it heard so."""
    assert play("farewell", 1, 10)[0] == ["exact"] * 10


class _LateWords(WordRelay):
    """Brings to one end an earlier packet number of the other one, when queue pairs are connected again."""

    def deliver(self, word):
        if word.destination == NICS[0].address and " again " in word.word:
            start, _, packet = word.word.rpartition(" ")
            word = msgspec.structs.replace(word, word=f"{start} {(int(packet) + 40) % (1 << 24)}")
        super().deliver(word)


def test_ends_that_hold_unlike_packet_numbers_lose_nothing(play):
    """The fence compares them: else packets would pass for old ones, which are acknowledged without effect."""
    assert play("second", 1, 5, relay=_LateWords)[0] == ["exact, moved"] * 5


class _LossyWords(WordRelay):
    """Brings words late, twice, in another order or not at all."""

    def __init__(self, *rest):
        super().__init__(*rest)
        self._draw = random.Random(63_000)

    def deliver(self, word):
        loop = asyncio.get_running_loop()
        for _ in range(self._draw.choice((0, 1, 1, 1, 1, 2))):
            loop.call_later(self._draw.choice((0, 0, 0.005, 0.05, 0.3)), super().deliver, word)


@pytest.mark.parametrize(("losses", "storms"), [((1, 4), (1, 1)), *at_night(((5, 20), (2, 3)))])
def test_words_may_be_lost_or_late(play, losses, storms):
    """The result is exact all the same, or an error: on a busy machine words may take longer than two seconds."""
    found = play("loss", *losses, relay=_LossyWords)[0] + play("storm", *storms, relay=_LossyWords)[0]
    assert len(found) == sum(last - first + 1 for first, last in (losses, storms))
    assert set(found) <= {"exact, moved", "exact", "error"}
    assert "exact, moved" in found


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["loss", "shared", "counts", "storm"])
def test_many_losses(play, what):
    """Each is survived, also where words are lost, on a machine with nothing else to do; a storm has six."""
    count = 20 if what == "storm" else 100
    assert play(what, 63_001, 63_000 + count)[0] == ["exact, moved"] * count
    assert play(what, 63_201, 63_200 + count, relay=_LossyWords)[0] == ["exact, moved"] * count


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", failover_mutants.MUTANTS)
def test_a_planted_bug_is_found(play, tmp_path, mutant):
    """By one loss at a random moment, or by several: what an old NIC has left comes when it is repaired."""
    library = str(failover_mutants.compile_mutant(mutant, tmp_path))
    found = play("loss", 1, 20, LD_PRELOAD=library)[0] + play("storm", 1, 4, LD_PRELOAD=library)[0]
    assert set(found) - {"exact, moved", "exact", "error"}


class _DyingAgent(WordRelay):
    """Goes with the first word about a fence, and is there again after a while."""

    def __init__(self, away_s, *rest):
        super().__init__(*rest)
        self._away_s, self._back_s = away_s, None

    async def serve(self, reader, writer, pid):
        if self._back_s is None or asyncio.get_running_loop().time() > self._back_s:
            await super().serve(reader, writer, pid)

    def deliver(self, word):
        if self._back_s is None and " fence " in word.word:
            self._back_s = asyncio.get_running_loop().time() + self._away_s
            for writer in self._ends.values():
                writer.close()
        if self._back_s is None or asyncio.get_running_loop().time() > self._back_s:
            super().deliver(word)


@pytest.mark.parametrize(("away_s", "comes"), [(0.5, "exact, moved"), (20.0, "error")])
def test_an_agent_dies_in_the_middle_of_a_move(play, away_s, comes):
    """Where it returns within two seconds the connection goes on, else both programs get the error."""
    assert play("loss", 1, 1, relay=partial(_DyingAgent, away_s))[0] == [comes]


def test_a_fork_changes_nothing(play):
    """What a child does with what it has of its parent's leaves the parent's connections as they are."""
    assert play("fork", 1, 5)[0] == ["exact, moved"] * 5


def test_queue_pairs_of_a_program_that_waits_for_events_do_not_move(play):
    """Their failure is an error at both ends, and one line says why."""
    found, said = play("events", 1, 2)
    assert found == ["error"] * 2
    assert "waits for events of completion queues" in said


def test_a_batch_is_posted_as_a_whole_or_not_at_all(play):
    """ibv_wr_complete refuses one that there is no room for, and carries none of it out."""
    assert play("batch", 1, 5)[0] == ["exact, moved"] * 5


def test_a_shared_receive_queue_is_made_larger(play):
    """At both NICs; one that has an event at a limit stays where it is, and its failure is an error."""
    assert play("larger", 1, 5)[0] == ["exact, moved"] * 5
    assert play("limit", 1, 1)[0] == ["error"]


def test_an_agent_that_does_not_answer_holds_no_program_up(play, tmp_path):
    """Queue pairs are made and given up while the library waits for it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "silent"))
        listening.listen()
        found, said = play("silent", 1, 1, C4BENCH_ATTACH_SOCKET=str(tmp_path / "silent"))
    assert found == ["exact"]
    assert "does not bring words to peers" in said


def test_the_loss_of_both_nics_is_an_error(play):
    """At both ends, and not a silence."""
    found, said = play("all", 1, 1)
    assert found == ["error"]
    assert "no other NIC can go on" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"agent": False}, "no agent at"),
        ({"C4BENCH_FAILOVER": "nic2=nic3"}, "nic0 has no second NIC"),
        *at_night(
            ({"C4BENCH_FAILOVER": "nic0=nic1"}, "nic2 has no second NIC"),
            ({"C4BENCH_FAILOVER": "nic0=nic9,nic2=nic3"}, "nic9 is not used when nic0 fails: it cannot be opened"),
        ),
    ],
)
def test_where_no_nic_can_go_on_a_failure_stays_one(play, options, why):
    """Both programs get the errors, and one line says why."""
    found, said = play("errors", 1, 1, **options)
    assert found == ["error"]
    assert why in said
