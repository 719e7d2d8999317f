"""Reads `agent.yml`, the agent's configuration."""

from pathlib import Path

from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import UsageError
from c4bench.model.agent import AgentConfig

# Each question makes all processes of the job exchange messages.
LEAST_RAS_S = 1.0


def load(path: Path) -> AgentConfig:
    """Read `agent.yml`. Raises UsageError naming the file and the key."""
    try:
        config = from_yaml(path.read_bytes(), AgentConfig)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; deploy the agent (playbooks/deploy.yml), or give --config") from None
    except (OSError, DecodingError) as error:
        raise UsageError(f"{path}: {error}") from None
    if config.ras:
        _check_ras(config.ras, path)
    if not config.ras_every_s >= LEAST_RAS_S:
        raise UsageError(f"{path}: ras_every_s: {config.ras_every_s}: give {LEAST_RAS_S:g} seconds or more")
    return config


def _check_ras(place: str, path: Path) -> None:
    from c4bench.evidence.limits import UnreadableError  # noqa: PLC0415  (few agents ask RAS, and it takes memory)
    from c4bench.evidence.ras_client import address  # noqa: PLC0415

    try:
        address(place)
    except UnreadableError as error:
        raise UsageError(f"{path}: ras: {place!r}: {error}") from None
