"""Which links are not to be used: lost ones, until they have been back for a while, and blamed ones, for a time."""

from collections.abc import Iterable

import msgspec


class HoldDown(msgspec.Struct, frozen=True):
    """How long a link that is back has to stay before it is used: `calm_s`, doubled with each loss within `memory_s`.

    Never more than `most_s`. A blamed link is tried again after `blame_s`.
    """

    calm_s: float = 0.2
    memory_s: float = 60.0
    most_s: float = 30.0
    blame_s: float = 60.0


class _Loss(msgspec.Struct):
    """A link that was lost: how often in a row, when last, and since when it answers again."""

    times: int
    lost_s: float
    back_s: float | None = None
    closed: bool = True


class LinkHealth:
    """The links' states, by hop. Times are seconds on the caller's clock."""

    def __init__(self, patience: HoldDown = HoldDown()) -> None:  # noqa: B008  (frozen)
        self._patience = patience
        self._losses: dict[str, _Loss] = {}
        self._blamed: dict[str, float] = {}

    @property
    def closed(self) -> frozenset[str]:
        """The links not to be used."""
        return frozenset({hop for hop, loss in self._losses.items() if loss.closed} | self._blamed.keys())

    @property
    def missing(self) -> frozenset[str]:
        """The links that are lost and have not come back."""
        return frozenset(hop for hop, loss in self._losses.items() if loss.closed and loss.back_s is None)

    def lose(self, hops: Iterable[str], now_s: float) -> None:
        """These links carry nothing."""
        for hop in hops:
            known = self._losses.get(hop)
            if known is None or now_s - known.lost_s > self._patience.memory_s:
                self._losses[hop] = _Loss(1, now_s)
            elif known.back_s is not None:
                self._losses[hop] = _Loss(known.times + 1, now_s)

    def hear(self, hops: Iterable[str], now_s: float) -> None:
        """These links carry what is sent over them."""
        for hop in hops:
            loss = self._losses.get(hop)
            if loss is not None and loss.back_s is None:
                loss.back_s = now_s

    def blame(self, hops: Iterable[str], now_s: float) -> None:
        """These links are not to be used for a time, whatever probes say."""
        self._blamed |= dict.fromkeys(hops, now_s + self._patience.blame_s)

    def due(self, now_s: float) -> frozenset[str]:
        """The links that may be used from now on."""
        ready = {hop for hop, loss in self._losses.items() if loss.closed and self._calm(loss, now_s)}
        for hop in ready:
            self._losses[hop].closed = False
        over = {hop for hop, until_s in self._blamed.items() if until_s <= now_s}
        for hop in over:
            del self._blamed[hop]
        return frozenset(ready | over) - self.closed

    def _calm(self, loss: _Loss, now_s: float) -> bool:
        patience = self._patience
        wanted_s = min(patience.calm_s * 2 ** (loss.times - 1), patience.most_s)
        return loss.back_s is not None and now_s - loss.back_s >= wanted_s - 1e-9
