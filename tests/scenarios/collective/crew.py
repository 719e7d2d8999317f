"""The test's control of the ranks of a `collectives` job."""

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.workload.collectives import Outcome

# Cases end by their own time-outs; this one is for ranks that are gone.
PATIENCE_S = 60.0


class Crew:
    """Ranks that wait for cases: called with one, every rank runs it, and the outcomes come back by rank."""

    def __init__(self, cluster, spec):
        self.spec = spec
        self.size = len(spec.members)
        self.nics = min(len(member.nics) for member in spec.members)
        self._cluster = cluster
        self._number = 0
        self._failed = False
        self.lost = False
        cluster.start(spec)

    def close(self):
        self._cluster.stop(self.spec.id)

    def __call__(self, case):
        self.give(case)
        return self.take()

    def give(self, case):
        """Have the ranks start; after a failure none of them keeps a communicator that another has lost."""
        fresh = msgspec.structs.replace(case, fresh=case.fresh or self._failed)
        self._exchange("case", msgspec.msgpack.encode(fresh))

    def take(self):
        """Wait for every rank to end the case."""
        answers = self._exchange("outcome", b"")[: self.size]
        self._number += 1
        outcomes = [msgspec.msgpack.decode(answer, type=Outcome) for answer in answers]
        self._failed = any(outcome.raised for outcome in outcomes)
        return outcomes

    def _exchange(self, what, payload):
        key = f"{what}/{self._number}"
        try:
            return self._cluster.exchange(self.spec.id, key, self.size, self.size + 1, payload, PATIENCE_S)
        except UnhealthyError:
            self.lost = True
            raise
