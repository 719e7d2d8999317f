"""The same training in one process without a fabric: to compare what methods learn, and to check the job's bits."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.diloco.plan import Turn
from c4bench.workload.diloco.quantisation import CODECS, Codec
from c4bench.workload.diloco.training import Batches, Outcome, OuterState, Replica, mean_of, train
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.protocol import Vector

_HELD_OUT = 64
_WAIT_S = 3600.0


@dataclass(frozen=True)
class Trained:
    """The losses of each site by inner step, and the final loss of the outer parameters on held-out text."""

    losses: tuple[tuple[float, ...], ...]
    final: float
    weights: Vector


class AllGather:
    """Gives each of `size` threads what all of them have brought, in their order."""

    def __init__(self, size: int) -> None:
        self._payloads = [b""] * size
        self._barrier = threading.Barrier(size, timeout=_WAIT_S)

    def exchange(self, number: int, payload: bytes) -> list[bytes]:
        """Bring this as thread `number`, and wait for the others."""
        self._payloads[number] = payload
        self._barrier.wait()
        payloads = list(self._payloads)
        # Nobody brings anything else before all have taken this.
        self._barrier.wait()
        return payloads


class MemoryExchange:
    """Exchanges outer gradients among threads, one for each site (see `training.Exchange`)."""

    def __init__(self, gathering: AllGather, site: int, parameters: Diloco, outer: OuterState) -> None:
        self._gathering, self._site, self._outer = gathering, site, outer
        self._workers = parameters.workers
        self._codec: Codec = CODECS[parameters.quantisation]
        self._sent: tuple[Turn, Vector] | None = None

    def send(self, turn: Turn, gradient: Vector) -> None:
        """See `training.Exchange`."""
        self._sent = turn, gradient

    def receive(self) -> Outcome:
        """See `training.Exchange`."""
        assert self._sent
        turn, gradient = self._sent
        count = -(-gradient.size // self._workers)
        padded = np.zeros(self._workers * count, np.float32)
        padded[: gradient.size] = gradient
        own = b"".join(self._codec.encode(shard).tobytes() for shard in padded.reshape(-1, count))
        arrived = self._gathering.exchange(self._site, own)
        rows = [np.frombuffer(each, np.uint8).reshape(self._workers, -1) for each in arrived]
        means = [mean_of([row[worker] for row in rows], self._codec, count) for worker in range(self._workers)]
        self._outer.step(turn.fragment, np.concatenate(means)[: gradient.size], turn.number)
        return Outcome(True, (), turn.number + 1)


def train_together(parameters: Diloco, seed: int) -> Trained:
    """Train all sites, a thread each, or all ranks as one site if data-parallel. Raises UsageError."""
    parameters.check()
    apart = parameters.method == "diloco"
    sites = parameters.sites if apart else (tuple(rank for site in parameters.sites for rank in site),)
    gathering, computing = AllGather(len(sites)), threading.Lock()
    with ThreadPoolExecutor(len(sites)) as pool:
        trained = [
            pool.submit(_train, parameters, seed, site, ranks, gathering, computing) for site, ranks in enumerate(sites)
        ]
        results = [future.result() for future in trained]
    weights = results[0][1]
    model = backends.create(parameters.backend, parameters.model)
    final = model.loss(weights, corpus.load().held_out(_HELD_OUT, parameters.model.context))
    return Trained(tuple(losses for losses, _ in results), final, weights)


def _train(
    parameters: Diloco,
    seed: int,
    site: int,
    ranks: tuple[int, ...],
    gathering: AllGather,
    computing: threading.Lock,
) -> tuple[tuple[float, ...], Vector]:
    """One site's losses, and the weights that it is evaluated by."""
    model = backends.create(parameters.backend, parameters.model)
    parts, plan = parameters.plan(list(model.layers))
    initial = model.initial(seed)
    outer = OuterState(initial, parts, parameters.outer_rate, parameters.outer_momentum)
    replica = Replica(initial, parts, AdamW(initial.size, parameters.rate), outer, parameters.mixing)
    batches = Batches(model, corpus.load(), parameters, seed)
    own = np.empty(initial.size + 1, np.float32)

    def inner_step(number: int) -> float:
        with computing:
            total = np.zeros_like(own)
            for rank in ranks:
                own[-1] = batches.gradient(replica.parameters, number, rank, own[:-1])
                total += own
            total /= np.float32(len(ranks))
            replica.inner.rate = parameters.rate_at(number)
            replica.inner.step(number, replica.parameters, total[:-1])
        return float(total[-1])

    if parameters.method == "data_parallel":
        losses = tuple(inner_step(number) for number in range(1, parameters.steps + 1))
        return losses, replica.parameters
    exchange = MemoryExchange(gathering, site, parameters, outer)
    losses = tuple(step.loss for step in train(replica, inner_step, plan, exchange, range(parameters.steps)))
    return losses, outer.parameters()
