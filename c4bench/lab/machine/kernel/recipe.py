"""What the lab's kernel is built from besides its source; the key of a cached kernel covers all of it."""

import hashlib
from pathlib import Path

_HERE = Path(__file__).parents[1]
CONFIG = _HERE / "kernel.config"
PATCH = _HERE / "kernel.patch"
PRELOAD = _HERE / "preload.c"
LANDMARKS = _HERE / "landmarks.c"
_REVISION = 5  # raised when a change of the build's commands changes the kernel

# The build's own stamp is hashed into the kernel's entropy at boot: pin it, or two machines would replay differently.
STAMP = {
    "KBUILD_BUILD_TIMESTAMP": "2026-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER": "c4bench",
    "KBUILD_BUILD_HOST": "lab",
    "KBUILD_BUILD_VERSION": "1",
}


def key() -> str:
    """A digest of the recipe, which changes with any part of it."""
    digest = hashlib.sha256(f"{_REVISION} {sorted(STAMP.items())}".encode())
    for part in (CONFIG, PATCH, PRELOAD, LANDMARKS):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:12]
