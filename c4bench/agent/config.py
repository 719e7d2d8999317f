"""What an agent is told by the host it runs on."""

from pathlib import Path

import msgspec
import yaml

from c4bench.errors import UsageError
from c4bench.model.fabric import Nic


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent.yml`: who this host is, where its master listens, and the NICs that jobs may use."""

    name: str
    master: str
    trust: str
    nics: tuple[Nic, ...] = ()
    port: int = 7447
    window_s: float = 0.1
    state: str = "/run/c4bench"
    rings: str = "/dev/shm/c4bench"

    @property
    def socket(self) -> str:
        """Where this host's ranks reach the agent."""
        return f"{self.state}/agent.sock"

    def ring(self, job: str, rank: int) -> Path:
        """The telemetry ring of a rank."""
        return Path(self.rings) / job / f"{rank}.ring"

    def controls(self, job: str, rank: int) -> Path:
        """The knobs a process fault turns on a rank (see `workload.controls`)."""
        return Path(self.rings) / job / f"{rank}.controls"


def load(path: Path) -> AgentConfig:
    """Read `agent.yml`. Raises UsageError naming the file and the key."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), AgentConfig)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}") from None
