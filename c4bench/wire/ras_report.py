"""The message in which an agent passes on what NCCL's RAS on its host reports."""

import msgspec


class RasReport(msgspec.Struct, frozen=True):
    """Agent to master, as a note: a report of RAS, compressed by gzip."""

    packed: bytes
