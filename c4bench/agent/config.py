"""Reads `agent.yml`, the agent's configuration."""

from pathlib import Path

import msgspec
import yaml

from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.evidence.limits import UnreadableError
from c4bench.evidence.ras_client import address
from c4bench.model.agent import AgentConfig

# Each question makes all processes of the job exchange messages.
LEAST_RAS_S = 1.0


def load(path: Path) -> AgentConfig:
    """Read `agent.yml`. Raises UsageError naming the file and the key."""
    try:
        config = msgspec.convert(from_yaml(path.read_bytes()), AgentConfig)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; deploy the agent (playbooks/deploy.yml), or give --config") from None
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from None
    if config.ras:
        try:
            address(config.ras)
        except UnreadableError as error:
            raise UsageError(f"{path}: ras: {config.ras!r}: {error}") from None
    if not config.ras_every_s >= LEAST_RAS_S:
        raise UsageError(f"{path}: ras_every_s: {config.ras_every_s}: give {LEAST_RAS_S:g} seconds or more")
    return config
