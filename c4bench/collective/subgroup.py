"""Some of a communicator's members, connected apart from the others, whose failures are the communicator's."""

from collections.abc import Sequence

import msgspec

from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_split import ChannelSplit
from c4bench.collective.errors import CollectiveError
from c4bench.collective.group import Group, Planner
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array
from c4bench.collective.process import RankProcess
from c4bench.collective.schedule import Span
from c4bench.model.telemetry import Member


class SubGroup:
    """The `ranks` of the communicator that is `whole`, a ring in this order. Each of them makes it, by the same name.

    Raises CollectiveError when it cannot be connected.
    """

    def __init__(
        self, whole: Group, name: str, ranks: Sequence[int], members: Sequence[Member], process: RankProcess
    ) -> None:
        self._whole = whole
        self._ranks = tuple(ranks)
        placed = [msgspec.structs.replace(members[rank], rank=place) for place, rank in enumerate(ranks)]
        with whole.guard.during("connecting"):
            place = self._ranks.index(whole.rank)
            self._group = Group(f"{whole.name}/{name}", place, placed, process, whole.options)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._group.size

    @property
    def lost(self) -> frozenset[int]:
        """See Group."""
        return self._group.lost

    @property
    def usual(self) -> ChannelSplit:
        """See Group."""
        return self._group.usual

    def ring(
        self,
        signature: Signature,
        array: Array,
        segments: list[Span],
        plan: Planner,
        reducing: Reducing,
        carriage: ChannelSplit | None = None,
    ) -> None:
        """See Group. Raises CollectiveError, in the communicator's ranks, and ends what that is doing."""
        try:
            self._group.ring(signature, array, segments, plan, reducing, carriage)
        except CollectiveError as error:
            peer = self._ranks[error.peer] if error.peer >= 0 else -1
            found = error.seen_by(self._whole.name, self._whole.rank, signature.kind, peer)
            self._whole.guard.abandon(found)
            raise found from error

    def abandon(self, error: BaseException) -> None:
        """See Guard."""
        self._group.guard.abandon(error)

    def close(self) -> None:
        """See Group."""
        self._group.close()
