"""The search for paths, on made-up fabrics whose switches answer as Linux does, or not at all."""

import itertools

import pytest
from night_cases import at_night
from search_fabric import PORTS, Fabric

from c4bench.c4p.knowledge.atlas import Question
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.knowledge.path_search import PathSearch


def paths_of(traces, pair):
    return {hops[1:-1] for (source, destination, _), hops in traces.items() if (source, destination) == pair}


@pytest.mark.parametrize(("known", "within_s"), [(True, 25), *at_night((False, 75))])
def test_limited_switches_show_all_paths_in_time(known, within_s):
    """With Linux's limits every pair of a fabric of 8 NICs gets a port for each of its paths within 25 seconds.

    It takes longer where destinations do not answer, so that it is not known how many switches there are.
    """
    fabric = Fabric()
    traces = fabric.search(known=known)
    assert fabric.wrong(traces) == {}
    across = [pair for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]]
    assert len(across) == 48
    assert all(len(paths_of(traces, pair)) == 4 for pair in across)
    assert all(paths_of(traces, pair) == {()} for pair in set(fabric.pairs) - set(across))
    assert fabric.now_s < within_s


def test_open_switches_are_learnt_without_a_pause():
    """Where every probe is answered, no round waits, and few ports are traced."""
    fabric = Fabric(limited=False)
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    assert fabric.now_s < 1.1
    assert len(traces) < len(fabric.pairs) * 24


@pytest.mark.parametrize("limited", [True, False])
def test_parallel_links_stay_apart(limited):
    """Two links between the same two switches are two paths, in both directions, though all others are single."""
    fabric = Fabric(spines=2, parallel=2, limited=limited)
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    assert len(paths_of(traces, ("h0/0", "h2/0"))) == len(paths_of(traces, ("h2/0", "h0/0"))) == 3
    assert len(paths_of(traces, ("h2/0", "h4/0"))) == 2


def test_counters_shorten_a_search():
    """While switches have no answers left, the links that carried packets show paths; other links are no path."""
    asked, counted = (Fabric(spines=2, parallel=2) for _ in range(2))
    asked.search()
    search = PathSearch(PORTS, counted.links)
    search.begin({pair: len(counted.path(*pair, PORTS[0])) for pair in counted.pairs})
    traces = counted.search(search=search, counted_from_s=5)
    assert counted.wrong(traces) == {}
    assert len(paths_of(traces, ("h0/0", "h2/0"))) == len(paths_of(traces, ("h2/0", "h0/0"))) == 3
    assert counted.now_s < 0.75 * asked.now_s
    pair = ("h0/0", "h2/0")
    search.begin({pair: 3}, first={pair: PORTS})
    search.begin_round(counted.now_s)
    port = search.port_to_count(())[1]
    path = counted.path(*pair, port)
    assert not search.record_links(pair, port, path[:2])
    assert not search.record_links(pair, port, {*path, "another"})
    search.record(Question(pair, port, 1), "another")
    assert not search.record_links(pair, port, path)


def test_a_mute_switch_hides_only_its_own_paths():
    """Pairs keep the paths over switches that answer; pairs behind a mute leaf have none, and are given up."""
    fabric = Fabric()
    fabric.mute = {"spine1"}
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    assert len(paths_of(traces, ("h0/0", "h2/0"))) == 3
    fabric = Fabric()
    fabric.mute = {"leaf1"}
    traces = fabric.search()
    assert [hops for (_, far, _), hops in traces.items() if far == "h2/0" and None not in hops] == []
    assert len(paths_of(traces, ("h0/0", "h4/0"))) == 4


def test_silence_everywhere_ends_the_search():
    """Without any answer every pair is given up after three rounds, with one trace that lacks one."""
    fabric = Fabric()
    fabric.mute = {f"leaf{number}" for number in range(4)} | {f"spine{number}" for number in range(4)}
    traces = fabric.search()
    assert {probe[:2] for probe in traces} == set(fabric.pairs)
    assert all(None in hops for hops in traces.values())
    assert fabric.now_s < 5


def test_after_a_change_nothing_found_before_counts():
    """When a spine is gone, the same search finds the new paths of all ports, and none over a lost link."""
    fabric = Fabric(limited=False)
    search = PathSearch(PORTS, fabric.links)
    search.begin({pair: len(fabric.path(*pair, PORTS[0])) for pair in fabric.pairs})
    fabric.search(search=search)
    fabric.spines = 3
    asked = fabric.asked
    pairs = [("h0/0", "h2/0"), ("h2/0", "h0/0")]
    search.begin(dict.fromkeys(pairs, 3), first={pairs[0]: [PORTS[60]]}, changed={"spine3<leaf0.0"})
    traces = fabric.search(search=search)
    assert fabric.wrong(traces) == {}
    assert (*pairs[0], PORTS[60]) in traces
    assert all(len(paths_of(traces, pair)) == 3 for pair in pairs)
    # The first switches, and most of those behind the spines, are known from before.
    assert fabric.asked - asked < 1.25 * len(traces)


def test_after_a_whole_search_it_is_known_how_traffic_goes_on():
    """When paths change, no last switch is asked, though most of their links were only inferred before."""
    fabric = Fabric()
    search = PathSearch(PORTS, fabric.links)
    pairs = [pair for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]]
    search.begin(dict.fromkeys(pairs, 3))
    fabric.search(search=search)
    fabric.now_s += 60
    search.begin(dict.fromkeys(pairs, 3), changed=())
    for nic in search.begin_round(fabric.now_s):
        while questions := search.questions(nic):
            assert all(question.position < 2 for question in questions)
            for question in questions:
                search.record(question, fabric.answer(question))


def test_paths_known_before_are_found_first():
    """Switches with two answers left for each NIC are asked about one port of every path, and not about many ports."""
    fabric = Fabric(spines=8)
    search = PathSearch(PORTS, fabric.links)
    pairs = [pair for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]]
    search.begin(dict.fromkeys(pairs, 3))
    fabric.search(search=search)
    fabric.tokens.clear()
    fabric.tokens.default_factory = lambda: (2.0, fabric.now_s)
    ways = {pair: {fabric.path(*pair, port): port for port in PORTS} for pair in pairs[:1]}
    search.begin(dict.fromkeys(ways, 3), likely={pair: found.values() for pair, found in ways.items()}, changed=())
    for nic in search.begin_round(fabric.now_s):
        while questions := search.questions(nic):
            for question in questions:
                search.record(question, fabric.answer(question))
    found = {pair: set() for pair in ways}
    for (source, destination, _), hops in search.end_round(fabric.now_s).items():
        found[source, destination].add(hops[:-1])
    assert found == {pair: set(known) for pair, known in ways.items()}


def test_paths_known_before_hide_no_other():
    """Of each pair only ports over one spine were known, as while links were missing: all spines are found again."""
    fabric = Fabric(leaves=2)
    pairs = [pair for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]]
    likely = {pair: [port for port in PORTS if fabric.path(*pair, port)[1].startswith("spine1")][:4] for pair in pairs}
    search = PathSearch(PORTS, fabric.links)
    search.begin(dict.fromkeys(pairs, 3), likely=likely)
    traces = fabric.search(search=search)
    assert fabric.wrong(traces) == {}
    assert all(len(paths_of(traces, pair)) == 4 for pair in pairs)


def test_paths_of_an_interrupted_search_say_nothing_of_what_follows():
    """A spine is added between two questions about a port: the path that the answers make up is in no later search."""
    fabric = Fabric()
    search = PathSearch(PORTS, fabric.links)
    switches = {pair: len(fabric.path(*pair, PORTS[0])) for pair in fabric.pairs}
    search.begin(switches)
    made_up = {}
    for fabric.spines in (3, 4, 4, 4):
        for nic in search.begin_round(fabric.now_s):
            while questions := search.questions(nic):
                for question in questions:
                    search.record(question, fabric.answer(question))
        made_up |= fabric.wrong(search.end_round(fabric.now_s))
        fabric.now_s += 1.2
    assert not made_up.keys().isdisjoint(search._asked.paths)
    search.begin(switches, changed=())
    assert search._asked.paths == {}
    assert fabric.wrong(fabric.search(search=search)) == {}
    search.begin(switches, changed=())
    assert search._asked.paths


def test_other_ports_are_asked_first_after_each_change():
    """A sample that missed a path would otherwise be drawn again, and miss it again."""
    search, pair = PathSearch(PORTS, Fabric().links), ("h0/0", "h2/0")
    first = []
    for changed in (None, (), ()):
        search.begin({pair: 3}, changed=changed)
        search.begin_round(0.0)
        first.append({port for _, port in search.open_ports()})
    assert all(a != b for a, b in itertools.pairwise(first))


@pytest.mark.parametrize("changes", range(1, 6))
def test_the_only_spine_that_has_answers_left_is_not_the_only_one(changes):
    """The others have spent theirs on all NICs, so the first paths found all cross one spine: no path is made up."""
    fabric = Fabric(leaves=2)
    search = PathSearch(PORTS, fabric.links)
    switches = {pair: len(fabric.path(*pair, PORTS[0])) for pair in fabric.pairs}
    for _ in range(changes):
        search.begin(switches, changed=())
    fabric.tokens |= {(nic, f"spine{spine}"): (0.0, 0.0) for nic in fabric.nics for spine in (0, 2, 3)}
    traces = fabric.search(search=search)
    assert fabric.wrong(traces) == {}
    assert all(
        len(paths_of(traces, pair)) == 4 for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]
    )


def test_a_spine_without_answers_is_not_gone():
    """Paths are learnt again just after checks have used up a spine's answers: its links are there all the same."""
    fabric = Fabric()
    search = PathSearch(PORTS, fabric.links)
    search.begin({pair: len(fabric.path(*pair, PORTS[0])) for pair in fabric.pairs})
    known = PathKnowledge()
    known.learn(fabric.search(search=search), fabric.now_s)
    pairs = [pair for pair in fabric.pairs if pair[0] == "h0/0" and fabric.nics[pair[1]]]
    known.begin(pairs, again=pairs)
    search.begin(dict.fromkeys(pairs, 3), changed=())
    fabric.now_s += 60
    fabric.tokens["h0/0", "spine3"] = 0.0, fabric.now_s
    gone = set()
    while search.open_pairs:
        for nic in search.begin_round(fabric.now_s):
            while questions := search.questions(nic):
                for question in questions:
                    search.record(question, fabric.answer(question))
        traces = search.end_round(fabric.now_s)
        sample = search.sample(lambda _, hop: not hop.startswith("spine3"))
        gone |= known.learn(traces, fabric.now_s, sample=sample).gone
        fabric.now_s += 0.1
    assert gone | known.end(search.given_up).gone == set()


def test_an_unreachable_host_gives_its_pairs_up():
    """What was found of them until then does not count as all of their paths."""
    fabric = Fabric()
    search = PathSearch(PORTS, fabric.links)
    pairs = [("h0/0", "h2/0"), ("h2/0", "h0/0")]
    search.begin(dict.fromkeys(pairs, 3))
    search.begin_round(0.0)
    search.give_up("h0/0")
    assert search.given_up == {pairs[0]}
    search.begin({pairs[0]: 3})
    assert search.given_up == set()


class PortHash(Fabric):
    """Switches hash only the source port, so eight ports in a row take the same spine between any two leaves."""

    def mixed(self, _source, _destination, port):
        return port << 5


def test_a_hash_of_few_fields_hides_no_path():
    """Traces of different pairs show different paths though switches hash nothing of a pair."""
    fabric = PortHash()
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    across = [pair for pair in fabric.pairs if fabric.nics[pair[0]] != fabric.nics[pair[1]]]
    assert all(len(paths_of(traces, pair)) == 4 for pair in across)


class ThreeTiers(Fabric):
    """Two pods of two leaves with two NICs each, two spines a pod, two cores above each; hashes differ by tier."""

    def path(self, source, destination, port):
        near, far = self.nics[source], self.nics[destination]
        if near == far:
            return (f"leaf{near}<{source}",)
        mixed = self.mixed(source, destination, port)
        pod, to_pod = near // 2, far // 2
        group, core = (mixed >> 8) % 2, (mixed >> 16) % 2
        up = f"spine{pod}{group}<leaf{near}"
        if pod == to_pod:
            return f"leaf{near}<{source}", up, f"leaf{far}<spine{pod}{group}"
        over = f"core{group}{core}<spine{pod}{group}", f"spine{to_pod}{group}<core{group}{core}"
        return f"leaf{near}<{source}", up, *over, f"leaf{far}<spine{to_pod}{group}"


def test_a_core_switch_tells_the_spines_before_and_behind_it():
    """In three tiers few spines answer for many paths; with the answers of cores all are known within 20 seconds."""
    fabric = ThreeTiers()
    traces = fabric.search()
    assert fabric.wrong(traces) == {}
    far = [pair for pair in fabric.pairs if fabric.nics[pair[0]] // 2 != fabric.nics[pair[1]] // 2]
    assert len(far) == 32
    assert all(len(paths_of(traces, pair)) == 4 for pair in far)
    assert fabric.now_s < 20


def test_a_mute_core_leads_to_no_wrong_path():
    """Paths over a switch that never answers stay unknown, and are not taken for those beside it."""
    fabric = ThreeTiers()
    fabric.mute = {"core00"}
    traces = fabric.search()
    assert fabric.wrong({probe: hops for probe, hops in traces.items() if None not in hops}) == {}


def test_a_port_in_use_is_traced_though_its_path_is_known():
    """Once all paths are known, ports that can take only a known one are left alone, but not those of live flows."""
    fabric = Fabric(limited=False)
    search = PathSearch(PORTS, fabric.links)
    search.begin(dict.fromkeys(fabric.pairs, 3) | {pair: 1 for pair in fabric.pairs if len(fabric.path(*pair, 0)) == 1})
    fabric.search(search=search)
    pair = ("h0/0", "h2/0")
    alike = [port for port in PORTS if fabric.path(*pair, port) == fabric.path(*pair, PORTS[0])]
    search.begin({pair: 3}, first={pair: alike})
    found = {port for *_, port in fabric.search(search=search)}
    assert found >= set(alike)
    assert len({fabric.path(*pair, port) for port in found}) == 4
