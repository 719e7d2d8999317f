"""How an agent is set up on its host, and where on that host things are."""

import zlib
from pathlib import Path

import msgspec

from c4bench.model.fabric import Nic

# In which part of a period hosts send their windows; the rest is left to be judged in, beside no host's window.
WINDOWS_WITHIN = 0.8


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.yml`: who this host is, where its master listens, and the NICs that jobs may use.

    NCCL's RAS is asked at `ras`, `localhost` or `localhost:PORT`, every `ras_every_s`; it is not where `ras` is empty.
    What answers is believed if it is root's, the agent's user's, or that of one of `ras_users`.
    Windows go over the `bus`, nats://HOST:PORT, to the detectors of `cluster`; where it is empty, to the master.
    Programs of root, of the agent's user and of `attach_users` may attach; their records lie in `attach_records`.
    `user` is whom an agent becomes that is started as root ("": it stays root), with the `capabilities` that it keeps.
    """

    name: str
    master: str
    trust: str
    nics: tuple[Nic, ...] = ()
    port: int = 7447
    window_s: float = 0.1
    state: str = "/run/c4bench"
    rings: str = "/dev/shm/c4bench"
    user: str = ""
    capabilities: tuple[str, ...] = ("net_raw",)
    ras: str = ""
    ras_every_s: float = 10.0
    ras_users: tuple[str, ...] = ()
    attach_users: tuple[str, ...] = ()
    attach_records: str = "/dev/shm/c4bench-attach"
    bus: str = ""
    cluster: str = "c4"

    @property
    def window_phase(self) -> float:
        """When in a period of `window_s` this host sends its window: its name's share, so that a fleet's are spread."""
        return WINDOWS_WITHIN * zlib.crc32(self.name.encode()) / 2**32

    @property
    def socket(self) -> str:
        """Where this host's ranks reach the agent."""
        return f"{self.state}/agent.sock"

    @property
    def attach_socket(self) -> str:
        """Where programs that are attached reach the agent."""
        return f"{self.state}/attach.sock"

    def ring(self, job: str, rank: int) -> Path:
        """The telemetry ring of a rank."""
        return Path(self.rings) / job / f"{rank}.ring"

    @property
    def gpu_links(self) -> Path:
        """What is between this host's GPUs (see `collective.gpu_links`)."""
        return Path(self.rings) / "gpu-links"

    def controls(self, job: str, rank: int) -> Path:
        """The knobs a process fault turns on a rank (see `workload.controls`)."""
        return Path(self.rings) / job / f"{rank}.controls"
