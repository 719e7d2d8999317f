"""The live page of a real master's parts, which simulated agents and a simulated job report to."""

import asyncio
import contextlib
import datetime
import json
import ssl
import threading
import time
import urllib.request

from c4bench.control.agents import AgentConnection
from c4bench.control.parts import compose
from c4bench.control.paths.learning import PlannedFabric
from c4bench.control.paths.switches import PortCount
from c4bench.deploy import authority
from c4bench.live.credentials import TokenFile, ensure_certificate
from c4bench.live.feed import Feed
from c4bench.live.server import PageServer, page_context
from c4bench.model.fabric import Flow, Host, Nic
from c4bench.model.step import StepOp
from c4bench.model.telemetry import Member
from c4bench.wire.messages import Hello, JobSpec, LaunchJob
from tools.bench.fabrics import clos
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RATE = 10e9
OPS = (StepOp("all_reduce", 4 << 20, 0.02), StepOp("all_to_all", 4 << 20, 0.0))
SLOW = SimFault(SimFaultKind.NIC_RATE, 3, 4.0, factor=0.3, side="tx")


def spec_of(name, hosts):
    nics = tuple(Nic(f"h{rank}", 0, "rxe0", "eth0", f"10.0.0.{rank}", RATE) for rank in range(hosts))
    return JobSpec(name, "steps", tuple(Member(rank, f"h{rank}", (f"h{rank}/0",), rank) for rank in range(hosts)), nics)


def port_of(hop):
    """The port at which a link of `bench.fabrics` enters a switch, as the switch would tell it."""
    kind, _, ends = hop.partition(":")
    near, _, far = ends.partition(">")
    switch = f"spine{far}" if kind == "up" else f"leaf{far}"
    return hop, PortCount(
        switch, f"down{near}" if kind == "up" else f"up{near}" if kind == "down" else near.partition("/")[0], 0, 0
    )


class PageScene:
    """`advance` lets simulated time pass; `address` is the page's. Times begin at the machine's present."""

    def __init__(self, folder, *, hosts=8, per_leaf=4, spines=4, faults=(SLOW,), ops=OPS, history=None, every=False):
        self.folder, self.hosts, self.began_s = folder, hosts, time.time()
        self.every, self.counting = every, None
        self.passed_s = 0.0
        now = datetime.datetime.now(datetime.UTC)
        authority.establish(folder / "trust", ["h0"], now)
        self.certificate, key = ensure_certificate(folder, (), now)
        self.tokens = TokenFile(folder)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.parts = self.call(compose)
        self.job = SimJob(hosts, ops, name="train", seed=1, clock_offsets_s=(self.began_s,) * hosts)
        self.ticks = simulate(self.job, faults, 1e6)
        self.call(lambda: self.populate(clos(hosts, per_leaf, spines)))
        self.server = PageServer(Feed(self.parts, history, self.now_s), self.tokens)
        tls = page_context(folder / "trust/ca.pem", self.certificate, key)
        opened, port = threading.Event(), []

        def ready(number):
            port.append(number)
            opened.set()

        self.serving = asyncio.run_coroutine_threadsafe(self.server.run(tls, "127.0.0.1", 0, ready), self.loop)
        assert opened.wait(10)
        self.address = f"https://localhost:{port[0]}"

    def now_s(self):
        return self.began_s + self.passed_s

    def call(self, make):
        async def call():
            made = make()
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(120)

    def populate(self, fabric):
        """Connect the agents, launch the job, and place flows on learnt paths: a ring's, and across where `every`."""
        spec, parts = spec_of("train", self.hosts), self.parts
        for number in range(self.hosts):
            parts.agents.refused[f"h{number}"] = 0
            parts.agents.add(AgentConnection(Hello(f"h{number}", "0.2.0", "", ""), None))
        parts.registry.add(LaunchJob(spec, spares=(Host("spare0", "10.0.1.0"),)))
        parts.attempts.admit(spec, followed=True)
        steps = (1, self.hosts // 2, self.hosts // 3) if self.every else (1,)
        ring = [(f"h{rank}/0", f"h{(rank + step) % self.hosts}/0") for step in steps for rank in range(self.hosts)]
        controller = parts.paths.controller
        controller.join([Flow(f"train/train:data/{n}>0/0.0", "train", *pair, RATE) for n, pair in enumerate(ring)])
        paths = {(*pair, 49153 + spine): fabric.hops(*pair, spine) for pair in ring for spine in range(fabric.spines)}
        controller.begin_learning(ring, self.now_s(), changed=True)
        controller.learn(paths, self.now_s())
        controller.end_learning(self.now_s())
        parts.paths.plan(
            PlannedFabric([Host(f"h{number}", "", spec.nics[number : number + 1]) for number in range(self.hosts)])
        )
        parts.paths._learner.rates = {hop: 2 * RATE for hops in paths.values() for hop in hops[1:-1]}
        parts.paths._learner._ports = dict(port for hops in paths.values() for port in map(port_of, hops[:-1]))
        return parts.paths._follow_paths(parts.paths._learner)

    def count(self, carried_bps):
        """Let the switches' counters show these loads, bit/s by hop, until others are given or the end."""
        if self.counting:
            self.counting.cancel()
        began_s = time.monotonic()

        def read():
            passed_s = time.monotonic() - began_s
            return {hop: PortCount("", hop, int(passed_s * bps / 8), 0) for hop, bps in carried_bps.items()}

        async def nothing(*_):
            pass

        self.counting = asyncio.run_coroutine_threadsafe(self.parts.paths.counted.watch(read, 0.2, nothing), self.loop)

    def advance(self, seconds):
        """Let the agents send their windows of the next seconds, and have them evaluated, all at once."""
        until_s = self.passed_s + seconds
        while self.passed_s < until_s - 1e-6:
            self.call(self.tick)

    def advance_slowly(self, seconds):
        """Let time pass as on the machine's clock, beside whatever else happens."""

        async def pass_time():
            for _ in range(int(10 * seconds)):
                await asyncio.gather(self.tick(), asyncio.sleep(0.1))

        asyncio.run_coroutine_threadsafe(pass_time(), self.loop)

    async def tick(self):
        tick, telemetry = next(self.ticks), self.parts.telemetry
        for window in tick.windows:
            await telemetry.ingest(window)
        self.passed_s = tick.time_s + 0.03
        for attempt, diagnoses in self.parts.detection.evaluate(self.now_s()).items():
            await telemetry._dispatch.publish(attempt, diagnoses, self.now_s())

    def publish(self, event):
        self.call(lambda: self.parts.log.publish(event))

    def token(self, name="someone", seconds=3600.0):
        return self.tokens.create(name, self.real_s() + seconds, self.real_s())

    real_s = staticmethod(time.time)

    def tls(self, who=None):
        context = ssl.create_default_context(cafile=self.certificate)
        if who:
            trust = self.folder / "trust"
            context.load_cert_chain(trust / f"{who}.pem", trust / f"{who}.key")
        return context

    def request(self, path, who=None, cookie="", data=None):
        """The status, headers and body of a request; redirections are not followed."""

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_):
                return None

        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self.tls(who)), Stay)
        made = urllib.request.Request(self.address + path, data, {"Cookie": cookie} if cookie else {})
        try:
            answer = opener.open(made, timeout=10)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers, answer.read().decode()

    @contextlib.contextmanager
    def stream(self, path="/stream", **given):
        """The (event, data) pairs of the stream, one by one."""
        made = urllib.request.Request(self.address + path, headers={"Cookie": given.get("cookie", "")})
        with urllib.request.urlopen(made, context=self.tls(given.get("who")), timeout=10) as answer:
            yield _messages(answer)

    def stop(self):
        self.serving.cancel()
        if self.counting:
            self.counting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            self.serving.result(10)
        self.call(lambda: asyncio.sleep(0.05))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def _messages(answer):
    event = ""
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
