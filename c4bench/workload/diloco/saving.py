"""Checkpoints of a job at several sites: each worker writes its share of its site's state."""

import msgspec
import numpy as np

from c4bench.collective.rendezvous import AbsentError
from c4bench.collective.schedule import split
from c4bench.errors import UsageError
from c4bench.workload.checkpoint import Checkpoints
from c4bench.workload.diloco.attendance import Gather
from c4bench.workload.diloco.fabric_exchange import Place
from c4bench.workload.diloco.replica import Replica


class Saver:
    """Saves and loads a replica. Sites agree by the control plane, so that no checkpoint waits for a slow link."""

    def __init__(self, checkpoints: Checkpoints, gather: Gather, place: Place, replica: Replica) -> None:
        self._checkpoints, self._gather, self._place, self._replica = checkpoints, gather, place, replica
        self._order, self._size = place.site * place.workers + place.worker, place.sites * place.workers

    def save(self, step: int) -> bool:
        """Write this worker's shard; the first worker completes the checkpoint. False if a worker does not come."""
        state = self._replica.state
        begin, end = split(state.size, self._place.workers)[self._place.worker]
        digest = self._checkpoints.write(step, self._order, self._size, state[begin:end].tobytes())
        try:
            digests = self._gather(f"checkpoint/{step}", range(self._place.sites), self._order, digest)
        except AbsentError:
            return False
        if self._order == 0:
            self._checkpoints.complete(step, digests)
        return True

    def load(self) -> int:
        """Load the newest checkpoint that every worker finds complete; returns its step, 0 if there is none.

        Raises UsageError if it is not of as many sites.
        """
        newest = msgspec.msgpack.encode(self._checkpoints.newest() or 0)
        found = self._gather("checkpoint/newest", range(self._place.sites), self._order, newest)
        step = min(msgspec.msgpack.decode(each, type=int) for each in found)
        if step:
            states = np.frombuffer(self._checkpoints.read(step), np.float32)
            if states.size != self._place.sites * self._replica.state.size:
                raise UsageError(f"checkpoints: that of step {step} is of other sites or of another model")
            self._replica.state = np.split(states, self._place.sites)[self._place.site]
        return step
