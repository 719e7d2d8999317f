"""What a resilient communicator has done so far, for whoever asks."""

import msgspec


class ResilienceCounters(msgspec.Struct, frozen=True):
    """Rails of this rank by state; how many died and came back; messages that came twice and were left alone.

    `reasons` are why rails died, each once; `findings` the components to blame, each with those that it cannot be told
    from. `split` all-reduces were done beside a rank that had lost NICs, and not at its pace; `reordered` ones by a
    ring in another order, because neighbours had lost different ones.
    """

    states: dict[str, int]
    died: int
    returned: int
    repeated: int
    reasons: tuple[str, ...]
    findings: tuple[tuple[str, ...], ...]
    split: int = 0
    reordered: int = 0
