"""Paths learnt before, a file for each fabric."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from c4bench.c4p.path_knowledge import PathKnowledge
from c4bench.errors import UsageError
from c4bench.model.fabric import Host


class SavedPaths:
    """The paths of the fabric that these hosts are on, in `folder`; known again by the addresses of all NICs."""

    def __init__(self, folder: Path, hosts: Iterable[Host]) -> None:
        addresses = sorted(nic.address for host in hosts for nic in host.nics)
        self.path = folder / f"{hashlib.sha256(' '.join(addresses).encode()).hexdigest()[:16]}.json"

    def load(self) -> PathKnowledge:
        """What was known when it was saved last; nothing where nothing was. UsageError for a file that is damaged."""
        try:
            return PathKnowledge.from_json(self.path.read_bytes()) if self.path.exists() else PathKnowledge()
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None

    def save(self, known: PathKnowledge) -> None:
        """Keep this, and of pairs that it knows nothing of what was known before; whole or not at all."""
        known.recall(self.load())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(known.to_json())
        fresh.replace(self.path)
