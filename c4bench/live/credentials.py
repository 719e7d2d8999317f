"""By what a browser trusts the live page, its certificate, and by what the page admits a browser, tokens.

Browsers accept no Ed25519 keys, which all other certificates here have. The page's own certificate is self-signed, with
an ECDSA key on P-256 (RFC 8446, section 9.1, requires every TLS 1.3 peer to know that), and is made when the page is
first served. A site with an authority that its browsers know gives its own certificate instead.

Tokens are random, stored as hashes, each with a name and an end. A token has 256 random bits, so a plain SHA-256 of it
tells nothing that could be guessed (RFC 6750, section 5.2, and NIST SP 800-63B, section 5.1.2.2, ask for slow hashes
only of secrets with less than 112 bits).
"""

import datetime
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from c4bench import files
from c4bench.errors import UsageError
from c4bench.record.encoding import decode, encode

# Browsers refuse certificates that live longer than 398 days.
_LIFETIME = datetime.timedelta(days=397)
_RENEW_BEFORE = datetime.timedelta(days=30)
FILE = "page-tokens.json"
_BYTES = 32
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


def ensure_certificate(folder: Path, names: Iterable[str], now: datetime.datetime) -> tuple[Path, Path]:
    """The page's certificate and key in `folder`, made again if missing, of other names, or near its end."""
    certificate, key = folder / "page.pem", folder / "page.key"
    wanted = sorted({"localhost", "127.0.0.1", "::1", *names})
    if not (key.exists() and certificate.exists() and _serves(certificate, wanted, now)):
        _make(certificate, key, wanted, now)
    return certificate, key


def fingerprint(certificate: Path) -> str:
    """The SHA-256 of a certificate as browsers show it: pairs of hex digits between colons."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(SHA256()).hex(":").upper()


def _serves(path: Path, wanted: list[str], now: datetime.datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {str(name.value) for name in names}
    return set(wanted) <= found and certificate.not_valid_after_utc > now + _RENEW_BEFORE


def _make(certificate: Path, key: Path, names: list[str], now: datetime.datetime) -> None:
    own = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c4bench live page")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(own, SHA256())
    )
    files.replace(key, [own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())], mode=0o600)
    certificate.write_bytes(made.public_bytes(Encoding.PEM))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


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
