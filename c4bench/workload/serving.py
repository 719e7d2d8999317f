"""Serving a named transformer: some ranks prefill prompts, as many others decode, as in DistServe (arXiv 2401.09670).

Requests arrive at random. The first half of the ranks is one tensor group, which prefills a prompt at a time; the
prompt's last token gives the first token of the answer. Each rank sends its keys and values to its peer of the second
half, the other tensor group: those of some layers while the next ones are prefilled, as Splitwise (arXiv 2311.18677)
does. The second half decodes all requests that have arrived there together, a token of each at a time.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.options import Options
from c4bench.cost.transformer import Accelerator, Parallelism, Transformer, decode_seconds, forward_pass
from c4bench.errors import UsageError
from c4bench.workload import exchanges
from c4bench.workload.context import RankContext
from c4bench.workload.exchanges import Exchange, InBackground
from c4bench.workload.pretraining import Scale, named


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`requests` that arrive `arrivals_s` a second (a Poisson process), of these mean lengths in tokens.

    `answer` counts the tokens after the first one, which prefilling gives. Lengths are drawn evenly from half to one
    and a half of the mean. Times are those of the modelled cluster; `scale` turns them into these hosts'. A pass over
    the layers is cut into `pieces`, each followed by an all-reduce, and by its keys and values if it prefills.
    """

    model: str
    requests: int
    arrivals_s: float
    prompt: int = 1024
    answer: int = 64
    pieces: int = 4
    accelerator: Accelerator = Accelerator()
    scale: Scale = Scale()
    resilient: bool = True
    profile: str = "brisk"


class Request(msgspec.Struct, frozen=True):
    """One request: when it arrives, in modelled seconds after the first one, its prompt, and its tokens to decode."""

    arrival_s: float
    prompt: int
    answer: int


def drawn(parameters: Serving, seed: int) -> list[Request]:
    """The requests of a job, the same on every rank."""
    draw, arrival_s, requests = random.Random(f"{seed} requests"), 0.0, []
    for _ in range(parameters.requests):
        lengths = (max(1, round(mean * draw.uniform(0.5, 1.5))) for mean in (parameters.prompt, parameters.answer))
        requests.append(Request(arrival_s, *lengths))
        arrival_s += draw.expovariate(parameters.arrivals_s)
    return requests


def check(parameters: dict[str, Any]) -> None:
    """Raise UsageError, or msgspec's ValidationError, for parameters that no job can have."""
    wish = msgspec.convert(parameters, Serving)
    named(wish.model)
    if min(wish.requests, wish.prompt, wish.answer, wish.pieces) < 1 or wish.arrivals_s <= 0:
        raise UsageError("requests, prompt, answer, pieces and arrivals_s must be positive")


def run(context: RankContext) -> None:
    """Report `ready`, and finally `served`: `times` by request, and whether all that was received is exact.

    A prefilling rank gives when each request arrived and had its first token; a decoding rank when it had each further
    token. All are this host's clock.
    """
    parameters = context.parameters(Serving)
    tensor, odd = divmod(context.size, 2)
    if odd or (problem := Parallelism(tensor).problem(named(parameters.model))):
        raise UsageError(f"{context.size} ranks: {'half of them prefill, give an even number' if odd else problem}")
    with ExitStack() as stack:
        world = stack.enter_context(context.communicator("world", Options.of(parameters)))
        half = world.split(context.rank // tensor)
        assert half is not None  # every rank gives a colour
        group = stack.enter_context(half)
        role = (_Prefill if context.rank < tensor else _Decode)(context, parameters, world, group)
        world.barrier()
        context.report("ready")
        times = role.serve(drawn(parameters, context.job.seed))
        world.barrier()
    context.report("served", times=times, exact=role.exact)


class _Role:
    """What both have: sizes, and the reductions of a pass."""

    def __init__(self, context: RankContext, parameters: Serving, world: Communicator, group: Communicator) -> None:
        self._parameters, self._controls, self._world, self._group = parameters, context.controls, world, group
        self._factor = parameters.scale.bytes_factor(context)
        self._time = parameters.scale.time
        self._model: Transformer = named(parameters.model)
        self.exact = True

    def _pass(self, compute_s: float, tokens: int, computed: Callable[[], None] = lambda: None) -> None:
        """Compute for modelled seconds and reduce the activations of so many tokens, piece by piece.

        `computed` is called with each piece, before its activations are reduced.
        """
        pieces = self._parameters.pieces
        size_bytes = self._factor * 2 * self._model.layers * self._model.activation_bytes(tokens) / pieces
        reduce = exchanges.all_reduce(self._group, size_bytes)
        for _ in range(pieces):
            self._controls.compute(self._time * compute_s / pieces)
            computed()
            self.exact = reduce() and self.exact

    def _kv_bytes(self, request: Request) -> float:
        """A rank's share of a prompt's keys and values in a piece of the layers."""
        return self._factor * self._model.kv_bytes(request.prompt) / self._group.size / self._parameters.pieces


class _Prefill(_Role):
    """A rank that prefills. Another thread sends keys and values meanwhile."""

    def serve(self, requests: Sequence[Request]) -> list[tuple[float, float]]:
        """Prefill every request; when each arrived and had its first token."""
        times, began, sender = [], time.time(), InBackground()
        try:
            for request in requests:
                arrived = began + self._time * request.arrival_s
                time.sleep(max(0.0, arrived - time.time()))
                self._prefill(request, sender)
                times.append((arrived, time.time()))
        finally:
            sender.finish()
        return times

    def _prefill(self, request: Request, sender: InBackground) -> None:
        shared, accelerator = Parallelism(self._group.size), self._parameters.accelerator
        work = forward_pass(self._model, shared, 1, request.prompt, accelerator)
        send = exchanges.send(self._world, self._world.rank + self._group.size, self._kv_bytes(request))
        self._pass(work.compute_s, request.prompt, lambda: sender.give([send]))


class _Decode(_Role):
    """A rank that decodes. Another thread receives keys and values meanwhile."""

    def serve(self, requests: Sequence[Request]) -> list[list[float]]:
        """Decode every request; when each had its second token, third token, and so on."""
        arrivals = _Arrivals(self._reception(request) for request in requests)
        times: list[list[float]] = [[] for _ in requests]
        active: list[int] = []
        admitted = 0
        while active or admitted < len(requests):
            here = np.array([arrivals.count(admitted if active else admitted + 1)])
            self._group.all_reduce(here, "min")
            active += range(admitted, int(here[0]))
            admitted = int(here[0])
            context = sum(requests[number].prompt + len(times[number]) for number in active)
            compute_s = decode_seconds(self._model, self._group.size, context, self._parameters.accelerator)
            self._pass(compute_s, len(active))
            now = time.time()
            for number in active:
                times[number].append(now)
            active = [number for number in active if len(times[number]) < requests[number].answer]
        self.exact = arrivals.close() and self.exact
        return times

    def _reception(self, request: Request) -> list[Exchange]:
        """Receives keys and values, piece by piece."""
        receive = exchanges.receive(self._world, self._world.rank - self._group.size, self._kv_bytes(request))
        return [receive] * self._parameters.pieces


class _Arrivals:
    """A thread that carries out receptions in order, each of several exchanges, and how many have ended."""

    def __init__(self, receptions: Iterable[list[Exchange]]) -> None:
        self._changed = threading.Condition()
        self._count, self._exact = 0, True
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._receive, args=(receptions,))
        self._thread.start()

    def count(self, least: int) -> int:
        """How many there are, once there are at least so many. Raises what has ended the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= least or self._error)
            if self._error:
                raise self._error
            return self._count

    def close(self) -> bool:
        """Wait for the end; whether all were exact."""
        self._thread.join()
        return self._exact

    def _receive(self, receptions: Iterable[list[Exchange]]) -> None:
        try:
            for reception in receptions:
                for receive in reception:
                    self._exact = receive() and self._exact
                with self._changed:
                    self._count += 1
                    self._changed.notify()
        except BaseException as error:  # whoever waits must learn of it
            with self._changed:
                self._error = error
                self._changed.notify()
