"""An authority for one fabric, and a certificate for each host, for the master and for those who speak to it.

Ed25519 throughout (RFC 8410): signatures have one size, so a handshake takes the same bytes, hence the same virtual
time, in every run.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from c4bench.wire.trust import MASTER, OBSERVER, OPERATOR

_LIFETIME = datetime.timedelta(days=3650)


def establish(directory: Path, hosts: Sequence[str], valid_from: datetime.datetime) -> None:
    """Make a new authority in `directory`: `ca.pem`, and `NAME.pem` with `NAME.key` for each.

    That is the master, its operator, observers and every host.

    The authority's own key is not kept: a fabric that gains a host is established anew.
    """
    directory.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c4bench")])
    authority = (
        _builder(name, name, key, valid_from, serial=1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    (directory / "ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    for serial, host in enumerate([MASTER, *hosts, OPERATOR, OBSERVER], start=2):
        own = Ed25519PrivateKey.generate()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            _builder(subject, name, own, valid_from, serial)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(key, None)
        )
        (directory / f"{host}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        secret = directory / f"{host}.key"
        secret.touch(mode=0o600)
        secret.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey, valid_from: datetime.datetime, serial: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(valid_from)
        .not_valid_after(valid_from + _LIFETIME)
    )
