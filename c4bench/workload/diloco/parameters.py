"""The parameters of a `diloco` job, and what must hold among them."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, Literal

import msgspec

from c4bench.errors import UsageError
from c4bench.verbs.transport import PROFILES
from c4bench.workload.diloco.plan import Fragment, Pattern, Schedule, cut, schedule
from c4bench.workload.diloco.quantisation import Name
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.backends import Backend
from c4bench.workload.models.protocol import Layer
from c4bench.workload.models.size import Size


class Diloco(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Train a transformer at several sites, `sites` being the ranks of each, for `steps` inner steps.

    - `method`: `diloco` synchronises the sites seldom; `data_parallel` sums the gradients of all ranks in every step.
    - `inner_steps` (H): a fragment is synchronised once in so many; `steps` is a multiple of it.
    - `fragments` (P), of whole blocks, chosen by `pattern`; the embedding is one more. 1 is the whole model at once:
      with `overlap` 0 and `quantisation` none that is plain DiLoCo.
    - `spacing`: inner steps from one fragment's turn to the next; 0 is the largest that has room for all.
    - `overlap` (tau): a fragment is received so many inner steps after it is sent.
    - `mixing` (alpha): the share of its own parameters that a site keeps when it receives.
    - `quorum`: an outer step needs the contributions of so many sites, more than half; 0 is all. Sites wait for others
      for `grace_s`.
    - `outer_rate`, `outer_momentum`: of the outer optimiser, Nesterov; `rate`: of the inner one, AdamW, which falls
      along a cosine to its `last_rate`-th part in the last step.
    - `sequences`: of the model's context, in the batch of each rank. `model`, `backend`: as for `learning`.
    - `compute_s`: what computing a step takes, with the relative standard deviation `jitter`, from the seed.
    - `gradients`: the type in which gradients are summed over ranks.
    - `evaluate_every` inner steps the outer parameters are evaluated, 0 for every `inner_steps`.
    - `checkpoints`: the folder of checkpoints, none if empty; one is written every `checkpoint_every` steps, a multiple
      of `inner_steps`.
    """

    sites: tuple[tuple[int, ...], ...]
    steps: int
    method: Literal["diloco", "data_parallel"] = "diloco"
    inner_steps: int = 100
    fragments: int = 8
    pattern: Pattern = "strided"
    spacing: int = 0
    overlap: int = 1
    mixing: float = 0.5
    quantisation: Name = "e3m0"
    quorum: int = 0
    grace_s: float = 5.0
    outer_rate: float = 0.4
    outer_momentum: float = 0.9
    rate: float = 3e-3
    last_rate: float = 0.1
    model: Size = Size(layers=24, width=16)
    backend: Backend = "numpy"
    sequences: int = 4
    compute_s: float = 0.1
    jitter: float = 0.0
    gradients: Literal["float32", "bfloat16"] = "float32"
    evaluate_every: int = 0
    checkpoints: str = ""
    checkpoint_every: int = 0
    profile: str = "brisk"
    paths: str = "planned"

    @property
    def workers(self) -> int:
        """The ranks of one site."""
        return len(self.sites[0])

    @property
    def needed(self) -> int:
        """How many sites an outer step needs."""
        return self.quorum or len(self.sites)

    @property
    def evaluations(self) -> int:
        """Inner steps between evaluations."""
        return self.evaluate_every or self.inner_steps

    def rate_at(self, number: int) -> float:
        """The inner optimiser's rate in inner step `number`, from 1."""
        share = (1 + math.cos(math.pi * number / self.steps)) / 2
        return self.rate * (self.last_rate + (1 - self.last_rate) * share)

    def check(self) -> None:
        """Raise UsageError for parameters that do not fit each other, with the parameter's name."""
        for holds, problem in _RULES:
            if not holds(self):
                raise UsageError(problem(self))
        self.plan([Layer(str(number), 0, 0) for number in range(self.model.layers + 1)])

    def plan(self, layers: list[Layer]) -> tuple[tuple[Fragment, ...], Schedule]:
        """The fragments of a model with these layers, and their schedule. Raises UsageError."""
        parts = cut(layers, self.fragments, self.pattern)
        return parts, schedule(self.inner_steps, len(parts), self.overlap, self.spacing)


def check(parameters: dict[str, Any]) -> None:
    """Raise UsageError or ValidationError if a job with these parameters cannot run, as far as can be seen here."""
    own = msgspec.convert(parameters, Diloco)
    own.check()
    backends.check(own.backend)
    corpus.load()


def check_ranks(parameters: Diloco, size: int) -> None:
    """Raise UsageError if the sites are not those of a job of `size` ranks."""
    if sum(map(len, parameters.sites)) != size:
        raise UsageError(f"sites: {sum(map(len, parameters.sites))} ranks are named, and the job has {size}")


def _ranks(parameters: Diloco) -> list[int]:
    return sorted(chain.from_iterable(parameters.sites))


_RULES: list[tuple[Callable[[Diloco], bool], Callable[[Diloco], str]]] = [
    (lambda p: len(p.sites) >= 2, lambda p: f"sites: {len(p.sites)} given; DiLoCo needs at least two"),
    (
        lambda p: len(set(map(len, p.sites))) == 1 and len(p.sites[0]) > 0,
        lambda p: f"sites: they have {', '.join(str(len(site)) for site in p.sites)} ranks; give all the same number",
    ),
    (
        lambda p: _ranks(p) == list(range(len(_ranks(p)))),
        lambda p: f"sites: name each rank from 0 to {len(_ranks(p)) - 1} once; the ranks named are {_ranks(p)}",
    ),
    (lambda p: p.inner_steps > 0, lambda p: f"inner_steps: {p.inner_steps} must be positive"),
    (
        lambda p: p.steps > 0 and p.steps % p.inner_steps == 0,
        lambda p: f"steps: {p.steps} must be a positive multiple of inner_steps, {p.inner_steps}",
    ),
    (lambda p: p.spacing >= 0, lambda p: f"spacing: {p.spacing} must be positive, or 0 for the largest possible"),
    (lambda p: 0 <= p.mixing <= 1, lambda p: f"mixing: {p.mixing:g} must be from 0 to 1"),
    (
        lambda p: p.quorum == 0 or len(p.sites) / 2 < p.quorum <= len(p.sites),
        lambda p: (
            f"quorum: {p.quorum} must be more than half of the {len(p.sites)} sites, or 0 for all: "
            "two halves must not go on apart"
        ),
    ),
    (lambda p: p.grace_s > 0, lambda p: f"grace_s: {p.grace_s:g} must be positive"),
    (lambda p: p.outer_rate > 0, lambda p: f"outer_rate: {p.outer_rate:g} must be positive"),
    (lambda p: 0 <= p.outer_momentum < 1, lambda p: f"outer_momentum: {p.outer_momentum:g} must be from 0 to below 1"),
    (lambda p: p.rate > 0, lambda p: f"rate: {p.rate:g} must be positive"),
    (lambda p: 0 <= p.last_rate <= 1, lambda p: f"last_rate: {p.last_rate:g} must be from 0 to 1"),
    (lambda p: p.sequences > 0, lambda p: f"sequences: {p.sequences} must be positive"),
    (lambda p: p.compute_s >= 0, lambda p: f"compute_s: {p.compute_s:g} must not be negative"),
    (
        lambda p: p.evaluate_every >= 0 and p.evaluate_every % p.inner_steps == 0,
        lambda p: f"evaluate_every: {p.evaluate_every} must be a multiple of inner_steps, {p.inner_steps}",
    ),
    (
        lambda p: p.checkpoint_every >= 0 and p.checkpoint_every % p.inner_steps == 0,
        lambda p: (
            f"checkpoint_every: {p.checkpoint_every} must be a multiple of inner_steps, {p.inner_steps}: "
            "then no fragment is under way"
        ),
    ),
    (
        lambda p: bool(p.checkpoints) == bool(p.checkpoint_every),
        lambda _: "checkpoints: give the folder and checkpoint_every, or neither",
    ),
    (lambda p: p.profile in PROFILES, lambda p: f"profile: {p.profile!r} is none of {', '.join(PROFILES)}"),
]
