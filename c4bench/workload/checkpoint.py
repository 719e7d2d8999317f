"""Checkpoints in a folder that all hosts share: a shard from every rank, and a manifest.

A checkpoint is a folder `STEP/` with `RANK-of-SIZE.shard` files and, once every shard is on disk, `manifest.json` with
their digests. Files are written atomically. A checkpoint without a manifest, or with a shard that does not match it, is
ignored.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from c4bench import files
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UnhealthyError

# The report of each rank after its first iteration, with the `step` of the checkpoint that it started from.
RESUMED = "resumed"
DIGEST_BYTES = 32
_MANIFEST = "manifest.json"
_KEPT = 3


class Manifest(msgspec.Struct, frozen=True):
    """The SHA-256 of each rank's shard, in hex, in the order of ranks."""

    step: int
    digests: tuple[str, ...]


class Checkpoints:
    """A job's checkpoints in `folder`, as one of its ranks uses them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, rank: int, size: int, shard: bytes) -> bytes:
        """Put a rank's shard on disk; returns its digest, for the manifest."""
        folder = self._step_folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        files.replace(folder / _name(rank, size), [shard], durable=True)
        return hashlib.sha256(shard).digest()

    def complete(self, step: int, digests: Sequence[bytes]) -> None:
        """Write the manifest, after every rank has written its shard, and delete old checkpoints."""
        manifest = Manifest(step, tuple(digest.hex() for digest in digests))
        files.replace(self._step_folder(step) / _MANIFEST, [msgspec.json.encode(manifest)], durable=True)
        for old in self._steps()[_KEPT:]:
            if old < step:
                shutil.rmtree(self._step_folder(old), ignore_errors=True)

    def newest(self) -> int | None:
        """The step of the newest checkpoint that is complete and intact; None if there is none."""
        return next((step for step in self._steps() if self._shards(step) is not None), None)

    def read(self, step: int) -> bytes:
        """All shards of a checkpoint in the order of ranks. Raises UnhealthyError if it is not complete."""
        shards = self._shards(step)
        if shards is None:
            raise UnhealthyError(
                f"{self._step_folder(step)} is not a complete checkpoint, but another rank found it complete"
            )
        return b"".join(shards)

    def _steps(self) -> list[int]:
        """The steps of all folders with a manifest, newest first."""
        return sorted((int(path.parent.name) for path in self._folder.glob(f"*[0-9]/{_MANIFEST}")), reverse=True)

    def _shards(self, step: int) -> list[bytes] | None:
        try:
            manifest = from_json((self._step_folder(step) / _MANIFEST).read_bytes(), Manifest)
            shards = list(self._read(step, manifest))
        except (OSError, DecodingError):
            return None
        digests = tuple(hashlib.sha256(shard).hexdigest() for shard in shards)
        return shards if manifest.step == step and digests == manifest.digests else None

    def _read(self, step: int, manifest: Manifest) -> Iterator[bytes]:
        size = len(manifest.digests)
        return ((self._step_folder(step) / _name(rank, size)).read_bytes() for rank in range(size))

    def _step_folder(self, step: int) -> Path:
        return self._folder / f"{step:010d}"


def _name(rank: int, size: int) -> str:
    return f"{rank}-of-{size}.shard"
