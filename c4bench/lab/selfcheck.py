"""The report of a lab that checks a new kernel."""

import msgspec


class Report(msgspec.Struct, frozen=True):
    """Random numbers in hexadecimal, the rate of a transfer's payload, and when it ended on the lab's clock."""

    drawn: list[str]
    goodput_bps: float
    ended_ns: int
