"""What a job's ranks do each iteration: computing and collectives, over all ranks or over groups of them."""

import msgspec


class RankGroup(msgspec.Struct, frozen=True):
    """A way to cut a job into communicators: `size` ranks each, `stride` apart.

    Megatron's tensor groups have stride 1; data groups have the tensor size for a stride; pipeline groups the product
    of both. The ranks of a job are a multiple of `size * stride`.
    """

    name: str
    size: int
    stride: int = 1

    def first(self, rank: int) -> int:
        """The lowest rank of the communicator that `rank` belongs to."""
        return rank - self.index_of(rank) * self.stride

    def index_of(self, rank: int) -> int:
        """Where `rank` stands in its communicator."""
        return rank // self.stride % self.size


class StepOp(msgspec.Struct, frozen=True):
    """A collective of every iteration: `compute_s` of computing, then `kind` over `size_bytes` a rank.

    `kind` is all_reduce (ring, 2(n-1) steps of size/n), all_gather (ring, n-1 steps), all_to_all (linear shift, n-1
    steps of size/n) or send (to the next rank of the group). Without a `group` all ranks take part together, with one
    its communicators do so side by side.
    """

    kind: str
    size_bytes: int
    compute_s: float
    group: RankGroup | None = None
