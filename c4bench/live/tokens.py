"""Tokens that admit a browser to the live page: random, stored as hashes, each with a name and an end.

A token has 256 random bits, so a plain SHA-256 of it tells nothing that could be guessed (RFC 6750, section 5.2, and
NIST SP 800-63B, section 5.1.2.2, ask for slow hashes only of secrets with less than 112 bits).
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

import msgspec

from c4bench import files
from c4bench.errors import UsageError
from c4bench.record.encoding import decode, encode

FILE = "page-tokens.json"
_BYTES = 32
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


class StoredToken(msgspec.Struct, frozen=True):
    """What is kept of a token: whose it is, its SHA-256 in hex, and when it ends (Unix time)."""

    name: str
    sha256: str
    ends_s: float


class TokenFile:
    """The tokens of a master, in its state folder; the file is read again for each question."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def stored(self, now_s: float) -> tuple[StoredToken, ...]:
        """The tokens that have not ended. Raises UsageError for a file that is not of tokens."""
        try:
            tokens = decode(self._path.read_bytes(), tuple[StoredToken, ...], str(self._path))
        except FileNotFoundError:
            return ()
        return tuple(token for token in tokens if token.ends_s > now_s)

    def create(self, name: str, ends_s: float, now_s: float) -> str:
        """Store a new token and return it; it can not be read again. Raises UsageError for a bad or a used name."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name for a token: use up to 64 letters, digits and . _ @ -")
        stored = self.stored(now_s)
        if name in {token.name for token in stored}:
            raise UsageError(f"there is a token {name!r} already; revoke it first: c4bench token revoke {name}")
        token = secrets.token_urlsafe(_BYTES)
        self._write((*stored, StoredToken(name, _digest(token), ends_s)))
        return token

    def revoke(self, name: str, now_s: float) -> None:
        """Remove a token, which admits nobody any more. Raises UsageError if there is none of this name."""
        stored = self.stored(now_s)
        if name not in (names := [token.name for token in stored]):
            raise UsageError(f"there is no token {name!r}; there are {', '.join(names) or 'none'}")
        self._write(tuple(token for token in stored if token.name != name))

    def holder(self, token: str, now_s: float) -> str | None:
        """Whose token this is; None if it is unknown, has ended or was revoked."""
        digest, found = _digest(token), None
        for stored in self.stored(now_s):
            if hmac.compare_digest(stored.sha256.encode(), digest.encode()):
                found = stored.name
        return found

    def _write(self, tokens: tuple[StoredToken, ...]) -> None:
        """Replace the file at once; only its owner may read it."""
        files.replace(self._path, [encode(tokens), b"\n"], mode=0o600)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
