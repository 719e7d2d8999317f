"""A certificate authority for one fabric, with certificates for the hosts, the master and its clients.

All keys are Ed25519 (RFC 8410): signatures have one size, so a handshake has the same number of bytes, and takes the
same virtual time, in every run. Revoked certificates are in the revocation list (RFC 5280, section 5), which follows
the authority's certificate in `ca.pem`; both ends of a connection check it.

A certificate states its role and the purpose of its key: the master's and nats-server's may serve, all others may
connect.
"""

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from c4bench.errors import UnhealthyError, UsageError
from c4bench.wire.trust import Role, check_host

# The authority's own certificate and its list; those it issues have to be renewed every year.
_AUTHORITY_LIFETIME = datetime.timedelta(days=3650)
_LIFETIME = datetime.timedelta(days=365)
# Certificates that expire sooner are replaced when certificates are prepared; their users are warned.
RENEW_BEFORE = datetime.timedelta(days=30)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c4bench")])
_SERVERS = (Role.MASTER, Role.BUS)
_ON_BUS = (Role.BUS, Role.DETECTOR, Role.BUS_MASTER, Role.BUS_LEADER)
Revoked = Mapping[int, datetime.datetime]


class _Authority(NamedTuple):
    directory: Path
    key: Ed25519PrivateKey
    certificate: x509.Certificate
    revoked: dict[int, datetime.datetime]


def establish(directory: Path, hosts: Iterable[str], valid_from: datetime.datetime) -> None:
    """Make a new authority in `directory`: `ca.pem` and `ca.key`, and a certificate for each name.

    The names are the master, every host, the operator and observers. A name's certificate is `NAME.pem`, its key
    `NAME.key`. The authority's own key is used only to issue, rotate and revoke, and never leaves the folder.
    """
    names = list(hosts)
    for name in names:
        check_host(name)
    directory.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    certificate = (
        _builder(_NAME, key, valid_from, _AUTHORITY_LIFETIME, serial=1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, None)
    )
    _write_secret(directory / "ca.key", key)
    authority = _Authority(directory, key, certificate, {})
    _publish(authority, valid_from)
    for serial, name in enumerate([Role.MASTER, *names, Role.OPERATOR, Role.OBSERVER], start=2):
        _issue(authority, name, valid_from, serial)


def issue(directory: Path, hosts: Iterable[str], valid_from: datetime.datetime) -> None:
    """Issue certificates for hosts that have none, and replace all that are `due`.

    Raises UsageError for what is no name of a host.
    """
    names = list(hosts)
    for name in names:
        check_host(name)
    missing = [name for name in names if not (directory / f"{name}.pem").exists()]
    _issue_all(_load(directory), [*missing, *due(directory, valid_from)], valid_from)


def issue_for_bus(directory: Path, valid_from: datetime.datetime) -> None:
    """Issue the certificates of nats-server, of detectors, and of masters as its clients, where there are none."""
    missing = [name for name in _ON_BUS if not (directory / f"{name}.pem").exists()]
    _issue_all(_load(directory), missing, valid_from)


def agents(directory: Path) -> list[str]:
    """The hosts whose agents have certificates, by name."""
    names = (path.stem for path in directory.glob("*.key"))
    return sorted(name for name in names if name != "ca" and _role_of(name) is Role.AGENT)


def due(directory: Path, now: datetime.datetime) -> list[str]:
    """The names whose certificates have to be replaced: they end within 30 days, or do not state the name's role."""
    found = {path.stem: _certificate(path) for path in sorted(directory.glob("*.pem")) if path.stem != "ca"}
    return [
        name
        for name, certificate in found.items()
        if certificate.not_valid_after_utc < now + RENEW_BEFORE or _uris(certificate) != [_role_of(name).uri]
    ]


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _role_of(name: str) -> Role:
    """The role of those who are issued a certificate in this name; hosts have other names (see `check_host`)."""
    return next((role for role in Role if role is not Role.AGENT and role == name), Role.AGENT)


def rotate(directory: Path, names: Iterable[str], valid_from: datetime.datetime) -> None:
    """Replace the keys and certificates of these names and revoke the old ones. UsageError for unknown names."""
    chosen = list(names)
    revoke(directory, chosen, valid_from)
    _issue_all(_load(directory), chosen, valid_from)


def revoke(directory: Path, names: Iterable[str], valid_from: datetime.datetime) -> None:
    """Revoke and delete the certificates of these names. UsageError for a name without one."""
    chosen, authority = list(names), _load(directory)
    for name in chosen:
        if not (directory / f"{name}.pem").exists():
            known = sorted(path.stem for path in directory.glob("*.key") if path.stem != "ca")
            raise UsageError(f"{directory} has no certificate of {name!r}; it has those of {', '.join(known)}")
    for name in chosen:
        authority.revoked[_certificate(directory / f"{name}.pem").serial_number] = valid_from
    _publish(authority, valid_from)
    for name in chosen:
        for suffix in ("pem", "key"):
            (directory / f"{name}.{suffix}").unlink()


def _issue_all(authority: _Authority, names: Iterable[str], valid_from: datetime.datetime) -> None:
    issued = [_certificate(path).serial_number for path in authority.directory.glob("*.pem")]
    for serial, name in enumerate(names, start=1 + max([*issued, *authority.revoked])):
        _issue(authority, name, valid_from, serial)


def _issue(authority: _Authority, name: str, valid_from: datetime.datetime, serial: int) -> None:
    own, role = Ed25519PrivateKey.generate(), _role_of(name)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if role in _SERVERS else ExtendedKeyUsageOID.CLIENT_AUTH
    names = [x509.DNSName(name), x509.UniformResourceIdentifier(role.uri)]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, own, valid_from, _LIFETIME, serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, None)
    )
    (authority.directory / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    _write_secret(authority.directory / f"{name}.key", own)


def _publish(authority: _Authority, valid_from: datetime.datetime) -> None:
    """Replace `ca.pem` atomically: an agent may be reading it."""
    listed = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(_NAME)
        .last_update(valid_from)
        .next_update(valid_from + _AUTHORITY_LIFETIME)
    )
    for serial, since in sorted(authority.revoked.items()):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
        listed = listed.add_revoked_certificate(entry)
    content = authority.certificate.public_bytes(Encoding.PEM)
    content += listed.sign(authority.key, None).public_bytes(Encoding.PEM)
    fresh = authority.directory / "ca.new"
    fresh.write_bytes(content)
    fresh.replace(authority.directory / "ca.pem")


def _load(directory: Path) -> _Authority:
    secret = directory / "ca.key"
    if not secret.exists():
        raise UnhealthyError(
            f"{secret} is missing, and certificates cannot be issued or revoked without it; use a new folder"
        )
    key = load_pem_private_key(secret.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    listed = x509.load_pem_x509_crl((directory / "ca.pem").read_bytes())
    revoked = {entry.serial_number: entry.revocation_date_utc for entry in listed}
    return _Authority(directory, key, _certificate(directory / "ca.pem"), revoked)


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _write_secret(path: Path, key: Ed25519PrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """RFC 5280, section 4.2.1.3: the authority signs certificates and lists, all others handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, key: Ed25519PrivateKey, valid_from: datetime.datetime, lifetime: datetime.timedelta, serial: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(valid_from)
        .not_valid_after(valid_from + lifetime)
    )
