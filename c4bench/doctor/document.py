"""The JSON output of `c4bench doctor --hosts`, which a run directory keeps too."""

import msgspec

from c4bench.doctor.capabilities import Report
from c4bench.doctor.switches import SwitchReport


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order."""

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
