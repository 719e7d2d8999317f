"""What the results of short transfers say about NICs, and which jobs they are asked of."""

import asyncio

import pytest

from c4bench.control.jobs.job import Job
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import ProbeFlow
from c4bench.model.fabric import Host, Nic
from c4bench.units import payload_bound
from c4bench.wire.job_names import is_check
from c4bench.wire.messages import Result

RATE_BPS = 1e10


def nic(host, index=0, rate_bps=RATE_BPS):
    return Nic(host, index, "r", "n", "", rate_bps)


class Ranks:
    """Plays the ranks of short jobs: `answer` gives the result of each rank of a job. Notes the order of events."""

    def __init__(self, answer):
        self._answer = answer
        self.specs, self.order, self.running, self.most = [], [], 0, 0

    def end_attempt(self, attempt):
        """As the registry: the attempt is registered as ended."""
        self.order.append(("registered", attempt))

    async def start(self, spec, *, followed):
        """As the attempts: a job whose ranks answer."""
        assert not followed
        self.specs.append(spec)
        self.order.append(("started", spec.id))
        self.running += 1
        self.most = max(self.most, self.running)
        job = Job(spec)
        await asyncio.sleep(0.01)
        for rank, body in enumerate(self._answer(spec)):
            await job.add(Result(spec.id, rank, body))
        return job

    async def end(self, attempt):
        """As the attempts."""
        self.running -= 1
        self.order.append(("ended", attempt))


def link_answer(fraction):
    """Ranks of a transfer, which reaches a share of the bound that the source and destination determine."""

    def answer(spec):
        source, destination = (member.nics[0] for member in spec.members)
        share = fraction(source, destination)
        if share is None:
            return [{"kind": "error", "error": "no path"}]
        bound_bps = payload_bound(min(nic.rate_bps for nic in spec.nics))
        sent = {"size_bytes": 1000, "messages": 8, "began_s": 5.0, "ended_s": 5.0 + 64_000 / (share * bound_bps)}
        return [{"kind": "link", "sent": [sent]}, {"kind": "link", "sent": []}]

    return answer


def test_the_worst_nic_in_its_worse_direction_counts():
    """Each NIC sends to and receives from one of the partner's; the smallest share of the bound is the host's."""
    shares = {("a/0", "b/0"): 0.9, ("b/0", "a/0"): 0.8, ("a/1", "b/0"): 0.7, ("b/0", "a/1"): 0.95}
    ranks = Ranks(link_answer(lambda *ends: shares[ends]))
    host, partner = Host("a", "", (nic("a"), nic("a", 1, 2 * RATE_BPS))), Host("b", "", (nic("b"),))
    worst = asyncio.run(ProbeJobs(ranks, ranks).worst_fraction(host, partner))
    assert worst == pytest.approx(0.7)
    assert [tuple(member.nics[0] for member in spec.members) for spec in ranks.specs] == list(shares)
    assert ranks.most == 1  # one after the other: two transfers of a NIC would share its rate
    assert {spec.parameters["total_bytes"] for spec in ranks.specs} == {16 << 20}


def test_an_attempt_is_registered_as_ended_before_it_starts():
    """A master that dies leaves no short job behind: each ends, also one that fails, and has a name that says so."""
    ranks = Ranks(link_answer(lambda *_: None))
    with pytest.raises(UnhealthyError, match="no path"):
        asyncio.run(ProbeJobs(ranks, ranks).worst_fraction(Host("a", "", (nic("a"),)), Host("b", "", (nic("b"),))))
    (name,) = {attempt for _, attempt in ranks.order}
    assert [event for event, _ in ranks.order] == ["registered", "started", "ended"]
    assert is_check(name)


def test_pairs_that_fail_in_either_direction_are_named():
    """All pairs are tried at once, with little data; one that works in one direction only does not work."""
    works = {("a/0", "b/0"), ("b/0", "a/0"), ("a/0", "c/0"), ("d/0", "a/0")}
    ranks = Ranks(link_answer(lambda *ends: 0.5 if ends in works else None))
    pairs = [(nic("a"), nic(other)) for other in "bcd"]
    failing = asyncio.run(ProbeJobs(ranks, ranks).failing(pairs))
    assert [other.name for _, other in failing] == ["c/0", "d/0"]
    assert ranks.most == 3
    assert {spec.parameters["total_bytes"] for spec in ranks.specs} == {1 << 20}


def probe(source, destination, port=0):
    return ProbeFlow(source, destination, port, 1e9, 0.5, ())


def test_probes_are_shares_of_their_slower_nic():
    """Rates come back in the order of the probes, whichever rank reports them; a transfer that failed is 0."""
    steps = [[probe("a/0", "b/0"), probe("c/0", "a/0")], [probe("a/0", "b/0", 50_000)]]
    nics = {one.name: one for one in (nic("a"), nic("b", rate_bps=RATE_BPS / 4), nic("c"))}
    found = {
        "a/0": [row("a/0", "b/0", 0, 2e9), row("a/0", "b/0", 50_000, 1e9)],
        "b/0": [],
        "c/0": [row("c/0", "a/0", 0, 0.0)],
    }
    ranks = Ranks(lambda spec: [{"kind": "pairs", "found": found[member.nics[0]]} for member in spec.members])
    shares = asyncio.run(ProbeJobs(ranks, ranks).shares(steps, nics))
    assert shares == pytest.approx([2e9 / payload_bound(RATE_BPS / 4), 0.0, 1e9 / payload_bound(RATE_BPS / 4)])
    (spec,) = ranks.specs
    assert [(member.rank, member.host, member.nics) for member in spec.members] == [
        (0, "a", ("a/0",)),
        (1, "b", ("b/0",)),
        (2, "c", ("c/0",)),
    ]
    # Half a second at 1 Gbit/s in ten messages, one at a time.
    assert spec.parameters["size_bytes"] * spec.parameters["messages"] == 62_500_000
    assert spec.parameters["gap_s"] == pytest.approx(0.05)
    assert [[step["source_port"] for step in steps] for steps in spec.parameters["steps"]] == [[0, 0], [50_000]]
    assert is_check(spec.id)


def row(source, destination, port, rate_bps):
    return {"source": source, "destination": destination, "source_port": port, "rate_bps": rate_bps}
