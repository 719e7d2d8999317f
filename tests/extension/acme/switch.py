"""What a switch's own counters are, by port. `output` runs a command there and returns what it prints."""

from collections.abc import Callable, Sequence

from c4bench import PortCounters


def read(switch: str, output: Callable[[Sequence[str]], bytes]) -> dict[str, PortCounters]:
    """A line for each port: `PORT BYTES PACKETS SENT_BYTES`."""
    lines = [line.split() for line in output(["acme-counters"]).decode().splitlines()]
    return {port: PortCounters(*map(int, counts)) for port, *counts in lines}
