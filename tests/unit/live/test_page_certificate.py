"""The page's own certificate: what browsers accept, made once, and again when it is due."""

import datetime
import stat

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from c4bench.live.credentials import ensure_certificate, fingerprint

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def test_browsers_accept_its_kind(tmp_path):
    """The key is on P-256, the life is at most 398 days, and the names include the one that was asked for."""
    path, key = ensure_certificate(tmp_path, ["master.example", "10.1.2.3"], NOW)
    made = x509.load_pem_x509_certificate(path.read_bytes())
    assert isinstance(made.public_key().curve, ec.SECP256R1)
    assert made.not_valid_after_utc - made.not_valid_before_utc <= datetime.timedelta(days=398)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "master.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert "10.1.2.3" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(fingerprint(path).split(":")) == 32


def test_it_is_made_again_only_when_due(tmp_path):
    """It stays while it has the names and a month to live; then, and for a new name, another is made."""
    path, _ = ensure_certificate(tmp_path, ["a.example"], NOW)
    first = path.read_bytes()
    ensure_certificate(tmp_path, ["a.example"], NOW + datetime.timedelta(days=300))
    assert path.read_bytes() == first
    ensure_certificate(tmp_path, ["a.example"], NOW + datetime.timedelta(days=380))
    second = path.read_bytes()
    ensure_certificate(tmp_path, ["b.example"], NOW + datetime.timedelta(days=381))
    assert len({first, second, path.read_bytes()}) == 3
