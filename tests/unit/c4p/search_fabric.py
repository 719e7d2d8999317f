"""A made-up fabric whose switches answer as Linux does, or not at all."""

import itertools
from collections import defaultdict

from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.path_search import PathSearch
from c4bench.model.fabric import Nic

PORTS = range(49153, 49153 + 64)
BURST, PER_S = 6, 1.0


class Fabric:
    """Leaves with two NICs each, spines, `parallel` links from leaf 0 to spine 0; the hash of a flow is arbitrary."""

    def __init__(self, leaves=4, spines=4, parallel=1, limited=True):
        self.spines, self.parallel, self.limited = spines, parallel, limited
        self.nics = {f"h{number}/0": number // 2 for number in range(2 * leaves)}
        self.links = NicLinks(Nic(nic[:-2], 0, "", "", f"address of {nic}", 1e10) for nic in self.nics)
        self.mute = set()
        self.tokens = defaultdict(lambda: (float(BURST), 0.0))
        self.now_s = 0.0
        self.asked = 0

    @property
    def pairs(self):
        return [(a, b) for a, b in itertools.permutations(self.nics, 2)]

    def path(self, source, destination, port):
        """The switches by the addresses of their ingress interfaces: `switch<from where`."""
        near, far = self.nics[source], self.nics[destination]
        if near == far:
            return (f"leaf{near}<{source}",)
        mixed = self.mixed(source, destination, port)
        spine, link = (mixed >> 8) % self.spines, (mixed >> 16) % self.parallel
        up, down = (link if not spine and leaf == 0 else 0 for leaf in (near, far))
        return f"leaf{near}<{source}", f"spine{spine}<leaf{near}.{up}", f"leaf{far}<spine{spine}.{down}"

    def mixed(self, source, destination, port):
        """The hash of a flow."""
        return (int(source[1:-2]) * 7919 + int(destination[1:-2]) * 104729 + port * 2654435761) & 0xFFFFFFFF

    def answer(self, question):
        """The address of the switch at which the probe expires, "" if its bucket for this NIC is empty."""
        self.asked += 1
        (source, destination), port, position = question
        path = self.path(source, destination, port)
        if position >= len(path) or path[position] in self.mute or path[position].split("<")[0] in self.mute:
            return ""
        key = source, path[position].split("<")[0]
        left, at_s = self.tokens[key]
        left = min(BURST, left + (self.now_s - at_s) * PER_S)
        if self.limited and left < 1:
            self.tokens[key] = left, self.now_s
            return ""
        self.tokens[key] = left - 1, self.now_s
        return path[position]

    def search(self, pairs=None, known=True, search=None, counted_from_s=float("inf")):
        """Search for all paths of these pairs, from `counted_from_s` on also by counters; return them by probe."""
        if search is None:
            search = PathSearch(PORTS, self.links)
            search.begin({pair: len(self.path(*pair, PORTS[0])) if known else 0 for pair in pairs or self.pairs})
        traces, counted = {}, set()
        while search.open_pairs:
            if search.ready(self.now_s):
                for nic in search.begin_round(self.now_s):
                    while questions := search.questions(nic):
                        for question in questions:
                            search.record(question, self.answer(question))
                traces |= search.end_round(self.now_s)
            elif self.now_s >= counted_from_s and (wanted := search.port_to_count(counted)):
                pair, port = wanted
                counted.add(wanted)
                assert search.record_links(pair, port, frozenset(self.path(*pair, port)))
            self.now_s += 0.1
        return traces

    def wrong(self, traces):
        """The traces that differ from what the fabric does."""
        return {probe: hops for probe, hops in traces.items() if hops != (*self.path(*probe), self.last_hop(probe))}

    def last_hop(self, probe):
        return f"address of {probe[1]}"
