"""Agents that only answer probes, and a path service that asks them."""

import asyncio
from collections import Counter

from c4bench.control.paths.service import PathService
from c4bench.control.paths.switches import PortCount
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow, HopAnswer, Host, Nic
from c4bench.wire.messages import Empty
from c4bench.wire.probes import ProbeAnswer

PORTS = range(50001, 50009)
HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "", "", f"10.0.{n}.1", 1e10),)) for n in range(4))


class Agent:
    """An agent whose probes take the spine that the source port's remainder selects; spines can be removed."""

    def __init__(self, host, spines):
        self.host, self.spines, self.probes = host, spines, 0
        self.leaf = f"leaf-{host}"
        self.mute = False
        self.sent = lambda: None
        self.counts = Counter()

    async def call(self, method, body, answer):
        if method == "burst":
            self.sent()
            for burst in body.bursts:
                spine = self.spines[burst.source_port % len(self.spines)]
                self.counts.update(
                    dict.fromkeys((self.leaf, spine, f"{spine}-{body.destination}")[: burst.hops], burst.count)
                )
            return Empty()
        assert (method, answer) == ("probe", ProbeAnswer)
        self.probes += 1
        return ProbeAnswer(tuple(self.answer(probe) for probe in body.probes))

    def answer(self, probe):
        """What answers, three switches before the destination; nothing if the agent is mute."""
        if self.mute:
            return HopAnswer()
        spine = self.spines[probe.source_port % len(self.spines)]
        path = (self.leaf, spine, f"{spine}-{probe.destination}", probe.destination)
        return HopAnswer(path[min(probe.ttl, len(path)) - 1], 61)


class Scene:
    def __init__(self, reachable=True):
        self.spines = ["s0", "s1"]
        self.agents = {host.name: Agent(host.name, self.spines) for host in HOSTS}
        self.reachable = reachable
        self.paths = PathService({}, self.agent)

    def agent(self, host):
        if not self.reachable:
            raise UnhealthyError(f"{host}: no agent is connected")
        return self.agents[host]

    def read(self):
        """The switches' ports as `Switches.ports` has them."""
        counts = sum((agent.counts for agent in self.agents.values()), Counter())
        hops = [f"leaf-{name}" for name in self.agents] + [
            end for spine in self.spines for end in (spine, *(f"{spine}-10.0.{n}.1" for n in range(len(HOSTS))))
        ]
        return {hop: PortCount("switch", hop, counts[hop] * 60, counts[hop]) for hop in hops}


def flow(number, to, qp=0):
    return Flow(f"j/j:data/{number}>{to}/0.{qp}", "j", f"h{number}/0", f"h{to}/0", 1e10)


def run(play):
    return asyncio.run(asyncio.wait_for(play, 20))
