"""The page's own certificate. Browsers accept no Ed25519 keys, which all other certificates here have.

It is self-signed, with an ECDSA key on P-256 (RFC 8446, section 9.1, requires every TLS 1.3 peer to know that), and is
made when the page is first served. A site with an authority that its browsers know gives its own certificate instead.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Browsers refuse certificates that live longer than 398 days.
_LIFETIME = datetime.timedelta(days=397)
_RENEW_BEFORE = datetime.timedelta(days=30)


def ensure(folder: Path, names: Iterable[str], now: datetime.datetime) -> tuple[Path, Path]:
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
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificate.write_bytes(made.public_bytes(Encoding.PEM))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
