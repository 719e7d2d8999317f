"""The agent of one host acts on what is its own only: not on other hosts' ranks, flows, jobs, nor on all memory."""

import asyncio
import math

import pytest
from hostile_agent import MEMBERS, OTHER, SHARED, as_written, flow, make_scene, memory_bytes, playing, refusal

from c4bench.model.diagnosis import Component, NetworkLoss
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Failure, Member
from c4bench.wire.channel import ChannelClosed
from c4bench.wire.messages import (
    Call,
    ChooseQps,
    Empty,
    Exchange,
    Exchanged,
    Fail,
    FollowGuidance,
    Guidance,
    Hello,
    InboxBatch,
    JobSpec,
    NetworkLost,
    PollInbox,
    RelayMessage,
    Release,
    Result,
    Route,
    StartRanks,
    Watch,
)
from c4bench.wire.peer import encode
from c4bench.wire.window_codec import WindowEncoder
from tools.sim.windows import window_of

NOT_THEIRS = ("does not speak for these ranks", "is no NIC of", "is of another job", "is not one of", "is one of")
FLOW, OTHERS = flow("h0", "h1"), flow("h0", "h9", "other")
GROWTH_AT_MOST_BYTES = 96 << 20


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A master on this machine."""
    made = make_scene(tmp_path_factory.mktemp("agents"))
    yield made
    log = made.kill()
    assert not [line for line in log if "exception" in line or line["level"] == "ERROR"]
    assert all(line["message"].isprintable() for line in log)


def follow(*flows, port=49999, weight=1.0, refused=None):
    """A request for guidance."""
    return FollowGuidance(flows[0].job, flows, (port,) * len(flows), (weight,) * len(flows), refused or {})


PATH_ATTACKS = {
    "release another job's flow": ("release", Release("shared", (OTHERS.id,))),
    "variant: release it in that job's name": ("release", Release("other", (OTHERS.id,))),
    "release another host's flow": ("release", Release("shared", (FLOW.id,))),
    "pin another host's flow": ("follow", follow(FLOW, refused={FLOW.id: "pinned"})),
    "a flow between other hosts": ("route", Route("shared", (flow("h0", "h9"),))),
    "a demand of 1e18": ("route", Route("shared", (flow("h1", "h0", demand_bps=1e18, rank=1),))),
    "a demand of NaN": ("route", Route("shared", (flow("h1", "h0", demand_bps=math.nan, rank=1),))),
    "a demand of -5": ("route", Route("shared", (flow("h1", "h0", demand_bps=-5.0, rank=1),))),
    "variant: the id of another host's flow": ("route", Route("shared", (flow("h1", "h0", rank=0),))),
    "variant: paths between other hosts": ("qps", ChooseQps("shared", (("h0/0", "h1/0"),))),
    "variant: to a NIC of no job of its own": ("qps", ChooseQps("shared", (("h1/0", "h9/0"),))),
    "variant: weights that are no shares": ("follow", follow(flow("h1", "h0", rank=1), weight=math.inf)),
}
RANK_ATTACKS = {
    "exchange as another": ("exchange", Exchange("shared", "shared:data", "k", 0, 2, b"lie", 1.0)),
    "fail as another": ("fail", Fail("shared", "shared:data", Failure(0, "a lie"))),
    "word as another": ("word", RelayMessage("shared", "shared:data", 0, 1, b"lie")),
    "variant: fail for another": ("fail", Fail("shared", "shared:data", Failure(0, "a lie"), 1)),
    "variant: read another's messages": ("news", PollInbox("shared", "shared:data", 0, 0)),
    "variant: lose another's NIC": (
        "lost",
        NetworkLost("shared", "shared:data", NetworkLoss(0, Component("nic", "h0/0"), 1.0)),
    ),
    "variant: seats of ranks elsewhere": (
        "exchange",
        Exchange("shared", "shared:data", "k", 1, 2, b"lie", 1.0, (1, 0)),
    ),
    "variant: a size without end": ("exchange", Exchange("shared", "x", "k", 1, 1 << 62, b"", 1.0)),
    "variant: wait for NaN seconds": ("exchange", Exchange("shared", "x", "k", 1, 2, b"", math.nan)),
}


def attacks(table):
    """The attacks of a table as parameters, each with its marker."""
    return [pytest.param(*request, id=name, marks=pytest.mark.attack(name)) for name, request in table.items()]


@pytest.fixture(scope="module")
def answers(scene):
    """What the master says to each request of h1's agent, and what its health page says of flows then."""

    async def ask():
        async with playing(scene, SHARED, OTHER) as peers:
            for mine in (FLOW, OTHERS):
                await peers["h0"].call("route", Route(mine.job, (mine,)), list[int])
            said = {}
            for method, request in [*PATH_ATTACKS.values(), *RANK_ATTACKS.values()]:
                said[repr((method, request))] = await refusal(peers["h1"], method, request, object)
            health = await asyncio.to_thread(scene.health)
            await peers["h0"].call("release", Release("shared", (FLOW.id,)), Empty)
            return said, health

    return asyncio.run(ask())


@pytest.mark.parametrize(("method", "request_"), attacks(PATH_ATTACKS | RANK_ATTACKS))
def test_an_agent_speaks_for_its_own_ranks_and_flows_only(answers, method, request_):
    """A request in the name of others, or that asks for what cannot be, is refused, and the others' flow stays."""
    said, health = answers
    line = said[repr((method, request_))]
    own = "asks for", "is no weight", "reports a failure", "ranks take part", "Expected `float`", "is none"
    assert any(words in line for words in (*NOT_THEIRS, *own)), line
    assert [health["unplanned"][job]["flows"] for job in ("shared", "other")] == [1, 1]


@pytest.mark.attack("variant: an answer prepared for others")
def test_others_do_not_get_an_answer_that_one_rank_has_prepared(scene):
    """Whoever exchanges alone, under the others' names, meets only itself: they get each other's payloads."""

    async def play():
        async with playing(scene, SHARED) as peers:
            alone = Exchange("shared", "shared:data", "ring", 0, 1, b"lie", 5.0, (1,))
            assert (await peers["h1"].call("exchange", alone, Exchanged)).payloads == (b"lie",)
            failing = Fail("shared", "shared:data", Failure(0, "a lie"), 0, (1,))
            await peers["h1"].call("fail", failing, Empty)
            asked = (
                peers[f"h{rank}"].call(
                    "exchange", Exchange("shared", "shared:data", "ring", rank, 2, b"%d" % rank, 5.0), Exchanged
                )
                for rank in range(2)
            )
            return await asyncio.gather(*asked)

    assert asyncio.run(play()) == [Exchanged((b"0", b"1"))] * 2


@pytest.mark.attack("variant: flows of a job that has ended")
def test_nothing_is_planned_for_a_job_that_does_not_run(scene):
    """Requests about flows of a job that is over, or never was, are refused, also to follow them."""

    async def play():
        async with playing(scene) as peers:
            gone = flow("h1", "h0", "gone", rank=1)
            return [
                await refusal(peers["h1"], "route", Route("gone", (gone,)), list[int]),
                await refusal(peers["h1"], "follow", follow(gone), Guidance),
                await refusal(peers["h1"], "release", Release("gone", (gone.id,))),
            ]

    assert asyncio.run(play()) == ["job 'gone' does not run"] * 3
    assert scene.health()["unplanned"] == {}


async def flood(peer, messages):
    """Send these as they are, until the master closes the connection."""
    try:
        for message in messages:
            await peer._channel.send(message)
    except ChannelClosed:
        return


def calls(method, bodies):
    """Messages of calls that nobody waits for."""
    return (encode(Call(number + 1, method, as_written(body))) for number, body in enumerate(bodies))


# Those whose memory is kept come first: what others have freed is used again.
FLOODS = {
    "variant: answers that are kept": [
        Exchange("shared", "shared:data", f"k{n}", 0, 1, bytes(1 << 20)[:-200], 600.0, (1,)) for n in range(120)
    ],
    "variant: results": [Result("shared", 1, {"kind": "x", "more": "x" * (900 << 10)}) for _ in range(150)],
    "bodies of waiting calls": [
        Exchange("shared", "shared:data", f"k{n}", 1, 2, bytes(2 << 20), 600.0) for n in range(200)
    ],
    "variant: bodies that are just allowed": [
        Exchange("shared", "shared:data", f"k{n}", 1, 2, bytes((1 << 20) - 200), 600.0) for n in range(200)
    ],
    "variant: names of communicators": [
        Exchange("shared", f"{n}{'x' * 900_000}", "k", 1, 2, b"", 600.0) for n in range(150)
    ],
}


@pytest.mark.parametrize(
    ("method", "bodies"),
    [
        pytest.param("result" if "results" in name else "exchange", bodies, id=name, marks=pytest.mark.attack(name))
        for name, bodies in FLOODS.items()
    ],
)
def test_what_an_agent_has_under_way_is_bounded(scene, method, bodies):
    """However much it sends, memory grows by a bounded amount, other agents are answered, and it is given back."""

    async def play():
        async with playing(scene, SHARED) as peers:
            before = memory_bytes(scene)
            await flood(peers["h1"], calls(method, bodies))
            await asyncio.wait_for(peers["h0"].call("result", Result("shared", 0, {"kind": "alive"}), Empty), 10)
            return memory_bytes(scene) - before

    assert asyncio.run(play()) < GROWTH_AT_MOST_BYTES


@pytest.mark.attack("answers that nobody reads")
def test_an_agent_that_reads_no_answers_costs_one(scene):
    """It asks again and again for a large answer that is kept, and reads none: they are not made in advance."""
    big = Exchange("shared", "shared:data", "k", 0, 1, bytes(900 << 10), 600.0, (1,))

    async def play():
        async with playing(scene, SHARED) as peers:
            await peers["h1"].call("exchange", big, Exchanged)
            peers["h1"]._channel._connection.transport.pause_reading()
            before = memory_bytes(scene)
            asking = Exchange("shared", "shared:data", "k", 0, 1, b"", 600.0, (1,))
            await flood(peers["h1"], calls("exchange", [asking] * 500))
            await asyncio.sleep(0.5)
            await asyncio.wait_for(peers["h0"].call("result", Result("shared", 0, {"kind": "alive"}), Empty), 10)
            grown = memory_bytes(scene) - before
            peers["h1"]._channel._connection.transport.abort()
            return grown

    assert asyncio.run(play()) < GROWTH_AT_MOST_BYTES


def named_window(number, comms, members):
    """A window of h1 that names communicators without end."""
    records = [
        CommRecord(f"c{number}-{n}", "shared", tuple(Member(rank, f"h1-{number}-{n}", ()) for rank in range(members)))
        for n in range(comms)
    ]
    return window_of("h1", number, float(number), number + 1.0, records)


@pytest.mark.parametrize(
    ("comms", "members"),
    [
        pytest.param(1, 100_000, marks=pytest.mark.attack("names of windows")),
        pytest.param(6000, 5, marks=pytest.mark.attack("variant: many names of windows")),
    ],
)
def test_names_of_windows_are_bounded(scene, comms, members):
    """An agent whose windows name ever more is believed no more, and another one is served as before."""

    async def play():
        async with playing(scene, SHARED) as peers:
            before = memory_bytes(scene)
            encoder = WindowEncoder()
            names = ()
            for number in range(12):
                window = named_window(number, comms, members)
                names = (*names, *window.names.comms)
                grown = window.names.__class__(names)
                await peers["h1"].note("window", encoder.encode(window.__class__(*_with(window, grown))))
            await asyncio.wait_for(peers["h1"].call("result", Result("shared", 1, {"kind": "alive"}), Empty), 20)
            return memory_bytes(scene) - before

    assert asyncio.run(play()) < GROWTH_AT_MOST_BYTES
    assert scene.health()["agents"]["h1"]["dropped"]["unreadable window"]


def _with(window, names):
    """The fields of a window, with other names."""
    return [names if field == "names" else getattr(window, field) for field in window.__struct_fields__]


def claims(prefix, count, members=MEMBERS):
    """Jobs that an agent of h1 says it runs."""
    return tuple(StartRanks(JobSpec(f"{prefix}{n}", "none", members, ()), (1,)) for n in range(count))


@pytest.mark.parametrize(
    ("hellos", "most"),
    [
        pytest.param([claims("a", 2001)], 64, marks=pytest.mark.attack("2,001 jobs from one hello")),
        pytest.param([claims(f"b{n}-", 60) for n in range(4)], 64, marks=pytest.mark.attack("variant: few at a time")),
        pytest.param(
            [claims("c", 3, (*MEMBERS, *(Member(rank, "h1", ()) for rank in range(2, 30_000))))],
            2,
            marks=pytest.mark.attack("variant: jobs of many ranks"),
        ),
    ],
)
def test_an_agent_brings_back_a_bounded_number_of_jobs(tmp_path, hellos, most):
    """What is too much ends on its host, and is not saved; the next master starts with what was adopted."""
    scene = make_scene(tmp_path)

    async def play():
        for jobs in hellos:
            async with scene.agent("h1") as peer:
                await peer.call("hello", Hello("h1", "1", "", "", jobs), Empty)

    try:
        asyncio.run(play())
        assert 0 < len(scene.health()["jobs"]) <= most
        scene.kill()
        scene.start()
        assert 0 < len(scene.health()["jobs"]) <= most
    finally:
        log = scene.kill()
    assert len(log) < 4 * 64 + 20


@pytest.mark.attack("control characters from ranks")
def test_text_of_ranks_and_agents_is_fit_for_logs(tmp_path):
    """Reasons, results and versions with control characters are escaped in the log, and names with such refused."""
    scene, red = make_scene(tmp_path), "\x1b[31m\x9b\u202e\nroot: all is well"

    async def play():
        async with playing(scene, SHARED) as peers:
            await peers["h1"].call("hello", Hello("h1", red, red, red), Empty)
            watching = asyncio.create_task(peers["h0"].call("watch", Watch("shared", "shared:data"), Failure))
            await peers["h1"].call("fail", Fail("shared", "shared:data", Failure(1, red, red)), Empty)
            await peers["h1"].call("result", Result("shared", 1, {"kind": "error", "error": red}), Empty)
            component = Component("nic", f"h1/0{red}")
            lost = NetworkLost("shared", "shared:data", NetworkLoss(1, component, 1.0))
            said = [
                await refusal(peers["h1"], "lost", lost),
                await refusal(peers["h1"], "watch", Watch("shared", red), Failure),
                await refusal(peers["h1"], red, Empty()),
            ]
            health = await asyncio.to_thread(scene.page, "/metrics")
            return await watching, said, health

    try:
        failure, said, metrics = asyncio.run(play())
        assert (failure.reason + failure.status).isprintable()
        assert all(said)
        assert not {char for char in metrics if not char.isprintable()} - {"\n"}
    finally:
        scene.master.terminate()
        logged = scene.master.communicate()[1]
    assert not {char for char in logged if not char.isprintable()} - {"\n"}


def test_the_inbox_of_a_rank_is_its_own(scene):
    """What is right still works: a message reaches the rank that it is for, by its seat in the communicator."""

    async def play():
        async with playing(scene, SHARED) as peers:
            seats = (1, 0)
            await peers["h1"].call("word", RelayMessage("shared", "c", 0, 1, b"hello", seats), Empty)
            return await peers["h0"].call("news", PollInbox("shared", "c", 1, 0, seats), InboxBatch)

    assert asyncio.run(play()) == InboxBatch((b"hello",), 1)


def test_a_nic_of_the_job_may_ask_for_all_its_rate(scene):
    """What is right still works: a flow of a host's own NIC at its full rate is taken, followed and released."""
    mine = flow("h1", "h0", rank=1)
    assert isinstance(SHARED.nics[1], Nic)

    async def play():
        async with playing(scene, SHARED) as peers:
            ports = await peers["h1"].call("route", Route("shared", (mine,)), list[int])
            waiting = asyncio.create_task(peers["h1"].call("follow", follow(mine, port=0), Guidance))
            await asyncio.sleep(0.05)
            await peers["h1"].call("release", Release("shared", (mine.id,)), Empty)
            with pytest.raises(Exception, match="has released its flows"):
                await waiting
            return ports

    assert asyncio.run(play()) == [0]
