"""What may be behind a finding: each hypothesis that C4D weighed, with the facts that speak for it and against it."""

from enum import StrEnum

import msgspec

from c4bench.model.benign import Benign, BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis


class Fact(StrEnum):
    """What was seen. `Argument.about` and the names of `Argument.figures` are given for each.

    Of the delay matrix, about a cell (source NIC, destination NIC, source port) or a component:

    * `cell_slow`: `times_as_long` at least, in so many `spans`, and how much of the evidence that is `enough` (1)
    * `cells_slow`, `cells_well`: how many further `cells` of the component, and `times_as_long` of the worst
    * `cells_elsewhere`: how many slow, lossy or stalled `cells` of the finding do not cross the component
    * `slow_as_a_whole`: a row, column or link; how much of what is `enough`
    * `nic_busy`: `times_as_long` per byte, both sides together, in so many `spans`; how much of what is `enough`
    * `one_way_delays`: about a NIC: grown by `sent_s`, `received_s`, and by `elsewhere_s` without it

    Of packets:

    * `packets_lost`: about a cell, in so many `spans`: `sent_again` at its source, `out_of_sequence` and `duplicates`
      at its destination
    * `cells_lose_nothing`: `cells` of the component

    Of benign explanations of slow cells:

    * `marked`: `packets` that came marked to so many `nics` of theirs
    * `link_full`: about a link: the `share` of its rate that it carries
    * `rates_unknown`: about the `links`, how many are crossed
    * `traffic_arrived`: of other jobs, so many `times` at the onset
    * `connections_moved`: `connections` of the job that moved at the onset
    * `links_missing`: so many `links`, of which `behind` explain it
    * `link_missing`: about a link: `silent` (1) or not, `since_s` (master's clock); `missed_with`: about others

    Of hangs:

    * `waited_for`: by so many `ranks`, directly or through others; about the chain from one of them
    * `inside`, `not_entered`: about a rank and an operation
    * `stood_still`: for `stood_still_s`; a benign stall lasts `benign_s` at most
    * `process`, `port`: about a rank or a NIC, and its state
    * `heard`: about a host, `ago_s` before the finding
    * `connection_stalled`: about a sending and a receiving rank and the cell: `outstanding` messages, for `still_s`
    * `cells_carry`: so many `cells` of the component carried something afterwards
    * `ended`: about a rank, `ended_s`, when its process was seen dead (master's clock)
    * `called`: about ranks and what they called; `said`: about a rank and the reason that it gave

    Of late ranks: `late`, by `share` of the usual time of computing, over `operations`.

    Of probes, each with whether it `crosses` the component (1) or not:

    * `trains`, about a flow: `slow` of `trains`
    * `numbered_packets`, about a flow: of `sent` `lost`, and `late`, which others have overtaken
    * `expiring_packets`, about what they cross: whether they were `answered` (1) or met silence
    * `known_side`: about the side of a NIC that the job's own delays accused before
    * `swept`: about two NICs, the `share` of their rate that a transfer on its own came to

    Of NICs that pause: `paused`, for a `share` of the time.
    """

    CELL_SLOW = "cell_slow"
    CELLS_SLOW = "cells_slow"
    CELLS_WELL = "cells_well"
    SLOW_AS_A_WHOLE = "slow_as_a_whole"
    NIC_BUSY = "nic_busy"
    ONE_WAY_DELAYS = "one_way_delays"
    PACKETS_LOST = "packets_lost"
    CELLS_ELSEWHERE = "cells_elsewhere"
    CELLS_LOSE_NOTHING = "cells_lose_nothing"
    MARKED = "marked"
    LINK_FULL = "link_full"
    RATES_UNKNOWN = "rates_unknown"
    TRAFFIC_ARRIVED = "traffic_arrived"
    CONNECTIONS_MOVED = "connections_moved"
    LINKS_MISSING = "links_missing"
    LINK_MISSING = "link_missing"
    MISSED_WITH = "missed_with"
    WAITED_FOR = "waited_for"
    INSIDE = "inside"
    NOT_ENTERED = "not_entered"
    STOOD_STILL = "stood_still"
    PROCESS = "process"
    PORT = "port"
    HEARD = "heard"
    CONNECTION_STALLED = "connection_stalled"
    CELLS_CARRY = "cells_carry"
    ENDED = "ended"
    SAID = "said"
    CALLED = "called"
    LATE = "late"
    TRAINS = "trains"
    NUMBERED_PACKETS = "numbered_packets"
    EXPIRING_PACKETS = "expiring_packets"
    KNOWN_SIDE = "known_side"
    SWEPT = "swept"
    PAUSED = "paused"


class Standing(StrEnum):
    """What became of a hypothesis: the finding names it, lists it as an alternative, or C4D has dropped it."""

    NAMED = "named"
    ALTERNATIVE = "alternative"
    DROPPED = "dropped"


class Argument(msgspec.Struct, frozen=True):
    """A fact, what it is about, and its numbers: see `Fact`."""

    fact: Fact
    about: tuple[str, ...] = ()
    figures: dict[str, float] = {}


class Hypothesis(msgspec.Struct, frozen=True):
    """A component that may be to blame, or a benign explanation, with all that speaks for and against it."""

    what: Component | Benign
    standing: Standing
    speaks_for: tuple[Argument, ...] = ()
    speaks_against: tuple[Argument, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """The hypotheses behind a `diagnosis`, or behind a `slowdown` without a fault; the other one is None.

    Of `seen` findings like the diagnosis `right` named the right component; its confidence comes from that.
    """

    hypotheses: tuple[Hypothesis, ...]
    diagnosis: Diagnosis | None = None
    slowdown: BenignSlowdown | None = None
    right: int = 0
    seen: int = 0
