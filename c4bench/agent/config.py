"""Reads `agent.yml`, the agent's configuration."""

from pathlib import Path

import msgspec
import yaml

from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig


def load(path: Path) -> AgentConfig:
    """Read `agent.yml`. Raises UsageError naming the file and the key."""
    try:
        return msgspec.convert(from_yaml(path.read_bytes()), AgentConfig)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; deploy the agent (playbooks/deploy.yml), or give --config") from None
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from None
