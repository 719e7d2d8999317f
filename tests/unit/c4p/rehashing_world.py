"""A made-up fabric that hashes, fails and re-hashes, and the controller on it."""

from c4bench.c4p.controller import PathController
from c4bench.c4p.policy import PathPolicy
from c4bench.model.fabric import Flow
from tools.bench.fabrics import clos

RATE = 10e9
PORTS = range(49153, 49153 + 24)


class World:
    """Eight hosts under each of two leaves; a port's spine changes for all when the set of usable spines does."""

    def __init__(self, spines=8):
        self.fabric = clos(16, 8, spines)
        self.spines = list(range(spines))
        self.silent = set()
        # Probes that now take spine 0.
        self.elsewhere = set()

    def trace(self, source, destination, port):
        """What probing finds: hops up to a silent one."""
        spine = self.spines[hash_of(source, destination, port) % len(self.spines)]
        if (source, destination, port) in self.elsewhere:
            spine = 0
        hops = self.fabric.hops(source, destination, spine)
        for place, hop in enumerate(hops):
            if hop in self.silent:
                return (*hops[:place], None, hops[-1])
        return hops

    def traces(self, pairs, ports=PORTS):
        return {(*pair, port): self.trace(*pair, port) for pair in pairs for port in ports}

    def check(self, controller, now_s):
        """Make the checks that are due, and trace what they suspect; whether pairs have to be learnt again."""
        due = controller.checks(now_s)
        answers = {}
        for check in due:
            hops = self.trace(*check.pair, check.source_port)
            stopped = hops.index(None) if None in hops else len(hops)
            answers[check] = hops[check.position] if check.position < stopped else ""
        results = controller.evaluate_checks(answers, now_s)
        suspects = [(*pair, port) for pair, ports in results.suspects.items() for port in ports]
        traces = {probe: self.trace(*probe) for probe in suspects}
        return results.changed or controller.evaluate_traces(traces, now_s)

    def learn(self, controller, now_s):
        """Learn the pairs of live flows again: all ports whose probes are answered."""
        pairs = controller.pairs()
        controller.begin_learning(pairs, now_s, changed=True)
        controller.learn({probe: hops for probe, hops in self.traces(pairs).items() if None not in hops}, now_s)
        controller.end_learning(now_s)


def hash_of(source, destination, port):
    """Any fixed mixture: neighbours take different spines."""
    return (int(source[1:-2]) * 7 + int(destination[1:-2]) * 13 + port * 2654435761) >> 3


def flows(count=8, qps=1, job="j"):
    return [
        Flow(f"{job}/{job}:data/{n}>{n + 8}/0.{qp}", job, f"h{n}/0", f"h{n + 8}/0", RATE / qps)
        for n in range(count)
        for qp in range(qps)
    ]


def running(world, live, now_s=0.0, **policy):
    controller = PathController(PathPolicy(**policy))
    controller.join(live)
    world.learn(controller, now_s)
    return controller


def spines(controller, live):
    return [controller.path(flow.id).hops[1] for flow in live]
