"""A rank of a `diloco` job: connect, train, evaluate, report."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.collective.rendezvous import AbsentError
from c4bench.collective.schedule import split
from c4bench.errors import UsageError
from c4bench.workload.agent_rendezvous import AgentRendezvous
from c4bench.workload.checkpoint import Checkpoints
from c4bench.workload.context import RankContext
from c4bench.workload.diloco.fabric_exchange import Attendance, FabricExchange, Gather, Peers, Place
from c4bench.workload.diloco.parameters import Diloco, check_ranks
from c4bench.workload.diloco.quantisation import CODECS
from c4bench.workload.diloco.training import Batches, InnerStep, OuterState, Replica, Step, train
from c4bench.workload.jobs import host_rank
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.optimisers import AdamW


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


_HELD_OUT = 64  # sequences that an evaluation is over
_LATEST_S = 300.0  # how long ranks may take to start


class Job:
    """One rank of a job."""

    def __init__(self, context: RankContext, parameters: Diloco) -> None:
        check_ranks(parameters, context.size)
        self._context, self._parameters = context, parameters
        self._model = backends.create(parameters.backend, parameters.model, host_rank(context.job, context.rank))
        self._corpus = corpus.load()
        self._parts, self._plan = parameters.plan(list(self._model.layers))
        initial = self._model.initial(context.job.seed)
        outer = OuterState(initial, self._parts, parameters.outer_rate, parameters.outer_momentum)
        inner = AdamW(initial.size, parameters.rate)
        self._replica = Replica(initial, self._parts, inner, outer, parameters.mixing)
        self._apart = parameters.method == "diloco"
        self._sites = parameters.sites if self._apart else (tuple(range(context.size)),)
        site = next(number for number, ranks in enumerate(self._sites) if context.rank in ranks)
        ranks = self._sites[site]
        self._place = Place(site, ranks.index(context.rank), len(self._sites), len(ranks))
        self._options = Options.of(parameters)

    def run(self) -> None:
        """Train from the newest checkpoint on, and report what came of it."""
        parameters, context, place = self._parameters, self._context, self._place
        control = context.control_plane()
        with ExitStack() as stack:
            ranks = self._sites[place.site]
            comm = stack.enter_context(context.communicator(f"site{place.site}", self._options, ranks=ranks))
            batches = Batches(self._model, self._corpus, parameters, context.job.seed)
            weights, inner = self._replica.parameters, self._replica.inner
            step = InnerStep(batches, weights, inner, comm, context.controls, parameters, context.rank)
            exchange = self._exchange(stack, control) if self._apart else None
            saver = Saver(
                Checkpoints(Path(parameters.checkpoints)), self._gather(control, _LATEST_S), place, self._replica
            )
            began = saver.load() if parameters.checkpoints else 0
            comm.barrier()
            context.report("ready", step=began)
            began_s = time.monotonic()
            steps = range(began, parameters.steps)
            try:
                self._follow(self._steps(step, exchange, steps), began, saver)
            except CollectiveError as error:
                if not self._apart:
                    raise
                context.report("left", site=place.site, reason=str(error))
                comm.abandon(error)
            elapsed_s = time.monotonic() - began_s
            held = exchange.held if exchange else []
            times = {"computed_s": step.computed_s, "elapsed_s": elapsed_s}
            context.report("trained", site=place.site, **times, turns=[msgspec.to_builtins(turn) for turn in held])
        # A rank that ends long before the others looks like one that has failed.
        with suppress(AbsentError):
            order = place.site * place.workers + place.worker
            self._gather(control, parameters.grace_s)("end", range(place.sites), order, b"")

    def _gather(self, control: AgentRendezvous, timeout_s: float) -> Gather:
        """Exchanges of sites by the control plane."""

        def gather(key: str, sites: Sequence[int], rank: int, payload: bytes) -> list[bytes]:
            seats = tuple(seat for site in sites for seat in self._sites[site])
            return control.gather(key, rank, seats, payload, timeout_s)

        return gather

    def _exchange(self, stack: ExitStack, control: AgentRendezvous) -> FabricExchange:
        parameters, context, place = self._parameters, self._context, self._place
        near = context.communicator(f"shards{place.site}", self._options, ranks=self._sites[place.site])
        within = stack.enter_context(near)
        limit_s = parameters.grace_s
        far = msgspec.structs.replace(self._options, connect_s=limit_s, timeout_s=limit_s)

        def connect(sites: tuple[int, int], turn: int) -> Communicator:
            ranks = [self._sites[site][place.worker] for site in sites]
            name = f"sites{sites[0]}-{sites[1]}.{place.worker}.{turn}"
            return context.communicator(name, far, ranks=ranks, control=control)

        exchange = FabricExchange(
            place,
            self._replica.outer,
            CODECS[parameters.quantisation],
            parameters.needed,
            Attendance(self._gather(control, limit_s), place.site, place.worker, place.workers),
            Peers(place.site, connect),
            within,
        )
        stack.callback(exchange.close)
        return exchange

    def _steps(self, inner_step: InnerStep, exchange: FabricExchange | None, steps: range) -> Iterator[Step]:
        if exchange is None:
            return (Step(number, inner_step(number)) for number in range(steps.start + 1, steps.stop + 1))
        return train(self._replica, inner_step, self._plan, exchange, steps)

    def _follow(self, steps: Iterator[Step], began: int, saver: Saver) -> None:
        """Report losses and evaluations, and save checkpoints, as training goes on."""
        parameters, context = self._parameters, self._context
        losses: list[Step] = []
        for step in steps:
            if losses and step.number != losses[-1].number + 1:
                self._report(losses)
            losses.append(step)
            if step.number == began + 1:
                context.report("resumed", step=began)
            if step.number % parameters.inner_steps:
                continue
            self._report(losses)
            if step.number % parameters.evaluations == 0:
                self._evaluate(step.number)
            if parameters.checkpoints and step.number % parameters.checkpoint_every == 0:
                saver.save(step.number)

    def _report(self, losses: list[Step]) -> None:
        """Report the losses of consecutive steps, of which the first is number `first`, from 0; then forget them."""
        if self._place.worker == 0:
            kind = "losses" if self._place.site == 0 else "site_losses"
            values = [step.loss.hex() for step in losses]
            self._context.report(kind, site=self._place.site, first=losses[0].number - 1, losses=values)
        losses.clear()

    def _evaluate(self, number: int) -> None:
        """Report the loss of the outer parameters on held-out text; only the first worker of a site computes it."""
        if self._place.worker:
            return
        weights = self._replica.outer.parameters() if self._apart else self._replica.parameters
        held_out = self._corpus.held_out(_HELD_OUT, self._parameters.model.context)
        tokens = number * self._parameters.sequences * self._parameters.model.context * self._context.size
        loss = self._model.loss(weights, held_out)
        self._context.report("evaluation", site=self._place.site, step=number, tokens=tokens, loss=loss.hex())
