"""What `c4bench doctor --hosts` writes as JSON, and what a run keeps of it."""

import msgspec

from c4bench.doctor.capabilities import Report
from c4bench.doctor.switches import SwitchReport


class Document(msgspec.Struct, frozen=True):
    """Every host and every switch of an inventory, in its order."""

    hosts: tuple[Report, ...]
    switches: tuple[SwitchReport, ...]
