"""What a switch, an agent or a rank answers never ends what the master does again and again; it is said once."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest
from path_scene import HOSTS, PORTS, Scene, flow

from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.paths.service import PathService
from c4bench.control.paths.switches import CountedTraffic, Switches, port_counters
from c4bench.decoding import json_in
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import HopAnswer
from c4bench.remote.protocol import Completed
from c4bench.wire.messages import Route

PORT = {"ifname": "e0", "addr_info": [{"local": "s0"}], "stats64": {"rx": {"bytes": 7, "packets": 1}}}
WHOLE = json.dumps([PORT])
LONG = WHOLE.replace('"bytes": 7', f'"bytes": {"9" * 5000}')


def answering(output):
    """A switch that prints this for `ip -j`, and has no database."""

    def run(argv, **_):
        return Completed(1, b"", b"") if "sh" in argv else Completed(0, output, b"")

    inventory = SimpleNamespace(
        switches=("leaf0",),
        access={"leaf0": SimpleNamespace(netns="")},
        facts={"leaf0": SimpleNamespace(rates={}, counters="")},
    )
    return Switches(inventory, lambda _: SimpleNamespace(run=run))


OUTPUTS = {
    "a counter of 5,000 digits": LONG.encode(),
    "variant: a negative counter": WHOLE.replace("7", "-7").encode(),
    "variant: a counter of 400 digits": WHOLE.replace("7", "7" * 400).encode(),
    "variant: no UTF-8": b"\xff\xfe" + WHOLE.encode(),
    "variant: deeply nested": b"[" * 100_000,
    "variant: an object": b'{"ifname": 1}',
    "variant: 9 MiB": b"[" + b" " * (9 << 20) + b"]",
    "variant: nothing": b"",
}


@pytest.mark.attack("a stray line before what ip -j prints")
def test_a_stray_line_before_the_counters_is_passed_over():
    """A warning that a switch's shell prints first does not hide its counters."""
    ports = answering(b"warning: \x1b[31mlocale\n" + WHOLE.encode()).ports()
    assert ports["s0"].received_bytes == 7
    assert json_in("motd\n[1]", list[int]) == [1]


@pytest.mark.parametrize("output", [pytest.param(o, id=n, marks=pytest.mark.attack(n)) for n, o in OUTPUTS.items()])
def test_counters_that_cannot_be_read_are_said_once(output, caplog):
    """Reading goes on, one line names the switch, and other traffic is seen again once the switch answers well."""

    async def play():
        counted, good = CountedTraffic(), asyncio.Event()
        seen = asyncio.Event()
        bad, well = answering(output), answering(WHOLE.encode())

        def read():
            return well.ports() if good.is_set() else bad.ports()

        async def ingest(*_):
            seen.set()

        watching = asyncio.create_task(counted.watch(read, 0.01, ingest))
        await asyncio.sleep(0.15)
        good.set()
        await asyncio.wait_for(seen.wait(), 10)
        assert not watching.done()
        watching.cancel()

    asyncio.run(play())
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    said = record.getMessage()
    assert "leaf0: what ip -j address printed cannot be read" in said
    assert len(said) < 500


@pytest.mark.parametrize(
    "counters",
    [
        pytest.param("9" * 5000, marks=pytest.mark.attack("variant: a long counter of SONiC")),
        pytest.param("\u0663" * 30, marks=pytest.mark.attack("variant: digits of another script")),
    ],
)
def test_a_counter_of_sonic_that_is_none_names_the_switch(counters):
    """It is refused in one line."""
    names = json.dumps({"COUNTERS_PORT_NAME_MAP": {"value": {"Ethernet0": "oid:0x1"}}}).encode()
    rows = json.dumps({"COUNTERS:oid:0x1": {"value": {"SAI_PORT_STAT_IF_IN_OCTETS": counters}}}).encode()
    with pytest.raises(UnhealthyError, match="leaf0: sonic-db-dump printed a counter that is none") as said:
        port_counters("leaf0", names, rows)
    assert "\n" not in str(said.value)


ANSWERS = {
    "variant: a TTL of 999": HopAnswer("s0", 999),
    "variant: a negative TTL": HopAnswer("s0", -1),
    "variant: a hop with control characters": HopAnswer("\x1b[31ms0\n", 61),
    "variant: a hop without end": HopAnswer("s" * 100_000, 61),
}


@pytest.mark.parametrize("answer", [pytest.param(a, id=n, marks=pytest.mark.attack(n)) for n, a in ANSWERS.items()])
def test_an_agents_wrong_answers_to_probes_leave_the_others(answer):
    """Paths from the other hosts are learnt, those from its own are not, and the service goes on."""

    async def play():
        scene = Scene()
        liar = scene.agents["h0"]
        liar.answer = lambda _: answer
        scene.paths.plan(PlannedFabric(HOSTS, PORTS))
        watching = asyncio.create_task(scene.paths.run())
        ports = [await scene.paths.route(Route("j", (flow(*ends),))) for ends in ((0, 2), (1, 2))]
        assert not watching.done()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        return ports

    lies, truth = asyncio.run(asyncio.wait_for(play(), 20))
    assert lies == (0,)
    assert truth[0] in PORTS


@pytest.mark.attack("variant: watching paths meets an error of any kind")
@pytest.mark.parametrize("failure", [ValueError("no number"), UnhealthyError("leaf0 is away"), OSError("cut")])
def test_watching_paths_survives_any_error(failure, caplog):
    """Rounds go on after an error, which is reported once, and again only after one that went well."""
    rounds, bugs = [], []

    class Failing(PathService):
        async def _watch_once(self):
            rounds.append(1)
            if len(rounds) < 5:
                raise failure

    async def play():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["message"]))
        service = Failing({}, None)
        watching = asyncio.create_task(service.run())
        while len(rounds) < 7:
            await asyncio.sleep(0.02)
        watching.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
    said = [*bugs, *(record.getMessage() for record in caplog.records if record.levelname == "WARNING")]
    assert said == [f"watching paths failed, and goes on: {type(failure).__name__}: {failure}"]


RESULTS = {
    "variant: results without fields": {"kind": "link"},
    "variant: a transfer in no time": {
        "kind": "link",
        "sent": [{"size_bytes": 1, "messages": 1, "began_s": 1.0, "ended_s": 1.0}],
    },
    "variant: a transfer of NaN": {
        "kind": "link",
        "sent": [{"size_bytes": 1, "messages": 1, "began_s": float("nan"), "ended_s": 1.0}],
    },
}


@pytest.mark.parametrize("body", [pytest.param(b, id=n, marks=pytest.mark.attack(n)) for n, b in RESULTS.items()])
def test_results_of_ranks_that_say_nothing_are_a_failed_check(body):
    """A check whose rank reports something else has failed, in one line, as if the transfer had."""

    async def wait(*_):
        return [body, body]

    async def end(*_):
        return None

    async def start(*_, **__):
        return SimpleNamespace(wait=wait)

    registry = SimpleNamespace(end_attempt=lambda _: None)
    jobs = ProbeJobs(registry, SimpleNamespace(start=start, end=end))
    with pytest.raises(UnhealthyError) as said:
        asyncio.run(jobs.worst_fraction(HOSTS[0], HOSTS[1]))
    assert "\n" not in str(said.value)
