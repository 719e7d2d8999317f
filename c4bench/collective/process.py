"""What a rank's process provides to every communicator it joins."""

from collections.abc import Callable
from dataclasses import dataclass

from c4bench.collective.recorder import Recorder
from c4bench.collective.rendezvous import Rendezvous
from c4bench.model.fabric import Nic
from c4bench.verbs.transport import Port


def open_device(nic: Nic) -> Port:
    """Open a NIC through verbs. The import is late because everything else works without pyverbs."""
    from c4bench.verbs.device import Device  # noqa: PLC0415

    return Device(nic)


@dataclass(frozen=True)
class RankProcess:
    """Channel c of a communicator uses the c-th of `nics`; `open_port` opens one.

    `before_operation` is called before every operation.
    """

    job: str
    nics: tuple[Nic, ...]
    rendezvous: Rendezvous
    recorder: Recorder
    open_port: Callable[[Nic], Port] = open_device
    before_operation: Callable[[], None] = lambda: None
