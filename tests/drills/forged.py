"""Certificates that c4bench does not issue, signed by a fabric's own authority."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def forge(trust, name, roles, purposes=()):
    """Write `NAME.pem` and `NAME.key` that state these roles and purposes."""
    authority = x509.load_pem_x509_certificate((trust / "ca.pem").read_bytes())
    signer, own = load_pem_private_key((trust / "ca.key").read_bytes(), None), Ed25519PrivateKey.generate()
    uris = [x509.UniformResourceIdentifier(f"urn:c4bench:role:{role}") for role in roles]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=300))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *uris]), critical=False)
    )
    if purposes:
        certificate = certificate.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    (trust / f"{name}.pem").write_bytes(certificate.sign(signer, None).public_bytes(Encoding.PEM))
    secret = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (trust / f"{name}.key").write_bytes(secret)
