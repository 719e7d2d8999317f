"""No faster than the NIC sends: messages posted in bursts make queues in which other jobs' acknowledgements wait."""


class Tempo:
    """When messages may be posted so that they keep to a rate; times in ns of the caller's clock."""

    def __init__(self, rate_bps: float) -> None:
        self._ns_per_byte = 8e9 / rate_bps
        self._due_ns = 0.0

    def wait_ns(self, now_ns: int) -> int:
        """How long until the next message may go; 0 when it may."""
        return max(0, round(self._due_ns - now_ns))

    def took(self, size_bytes: int, now_ns: int) -> None:
        """A message has gone."""
        self._due_ns = max(self._due_ns, now_ns) + size_bytes * self._ns_per_byte
