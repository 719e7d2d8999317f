"""Certificates of a fabric."""

import datetime
import ssl

import pytest
from cryptography import x509

from c4bench.deploy.authority import ending, establish, issue, revoke, rotate
from c4bench.errors import UnhealthyError, UsageError
from c4bench.wire.trust import Role, client_context, peer_identity, server_context

NOW = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


def handshake(server, client, name="master"):
    """Both ends of a TLS connection in memory, after the handshake."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    master = server.wrap_bio(up, down, server_side=True)
    agent = client.wrap_bio(down, up, server_hostname=name)
    waiting = [agent, master]
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)
    return master


def contexts(trust, host, agent_trust=None):
    files = agent_trust or trust
    return (
        server_context(trust / "ca.pem", trust / "master.pem", trust / "master.key"),
        client_context(trust / "ca.pem", files / f"{host}.pem", files / f"{host}.key"),
    )


def test_a_host_proves_its_name_to_the_master(tmp_path):
    """The master learns from the certificate who speaks."""
    establish(tmp_path, ["h1", "h2"], NOW)
    assert peer_identity(handshake(*contexts(tmp_path, "h2"))).name == "h2"


def test_another_fabric_s_host_does_not_get_in(tmp_path):
    """A certificate of another authority is refused, though its names are the same."""
    for fabric in ("ours", "theirs"):
        establish(tmp_path / fabric, ["h1"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(tmp_path / "ours", "h1", tmp_path / "theirs"))


def test_a_host_cannot_pose_as_the_master(tmp_path):
    """An agent speaks only to whom its authority calls master."""
    establish(tmp_path, ["h1"], NOW)
    posing = server_context(tmp_path / "ca.pem", tmp_path / "h1.pem", tmp_path / "h1.key")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unsuitable certificate purpose|Hostname mismatch"):
        handshake(posing, contexts(tmp_path, "h1")[1])


def test_keys_are_for_their_owner_only(tmp_path):
    """No private key can be read by others."""
    establish(tmp_path, ["h1"], NOW)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {0o600}


def kept(trust, name, place):
    """A copy of what a host holds, as a thief would have it."""
    place.mkdir()
    for suffix in ("pem", "key"):
        (place / f"{name}.{suffix}").write_bytes((trust / f"{name}.{suffix}").read_bytes())
    return place


@pytest.mark.parametrize("change", [rotate, revoke])
def test_an_old_certificate_does_not_get_in(tmp_path, change):
    """Rotated or revoked, what a host held until now is refused, and the others' is not."""
    trust = tmp_path / "trust"
    establish(trust, ["h1", "h2"], NOW)
    old = kept(trust, "h1", tmp_path / "old")
    change(trust, ["h1"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(*contexts(trust, "h1", old))
    assert peer_identity(handshake(*contexts(trust, "h2"))).name == "h2"
    assert (trust / "h1.pem").exists() == (change is rotate)
    if change is rotate:
        assert peer_identity(handshake(*contexts(trust, "h1"))).name == "h1"


def test_a_stolen_master_commands_nobody(tmp_path):
    """An agent that has been told refuses a master whose key was rotated away."""
    trust = tmp_path / "trust"
    establish(trust, ["h1"], NOW)
    old = kept(trust, "master", tmp_path / "old")
    rotate(trust, ["master"], NOW)
    posing = server_context(trust / "ca.pem", old / "master.pem", old / "master.key")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(posing, contexts(trust, "h1")[1])


def test_a_host_that_joins_disturbs_nobody(tmp_path):
    """It gets a certificate with a new number; the others keep theirs, and a revoked number is never used again."""
    establish(tmp_path, ["h1", "h2"], NOW)
    before = (tmp_path / "h1.pem").read_bytes()
    revoke(tmp_path, ["h2"], NOW)
    issue(tmp_path, ["h1", "h2", "h3"], NOW)
    assert (tmp_path / "h1.pem").read_bytes() == before
    assert {peer_identity(handshake(*contexts(tmp_path, name))).name for name in ("h1", "h2", "h3")} == {
        "h1",
        "h2",
        "h3",
    }


def test_what_cannot_be_done_is_said(tmp_path):
    """A name without a certificate, and an authority whose key is elsewhere; nothing is changed."""
    establish(tmp_path, ["h1"], NOW)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="no certificate of 'h9'; it has those of h1, master"):
        rotate(tmp_path, ["h1", "h9"], NOW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "ca.key").unlink()
    with pytest.raises(UnhealthyError, match=r"ca\.key is missing"):
        revoke(tmp_path, ["h1"], NOW)


@pytest.mark.parametrize(
    ("name", "role"), [("h1", Role.AGENT), ("operator", Role.OPERATOR), ("observer", Role.OBSERVER)]
)
def test_a_name_stands_for_a_role(tmp_path, name, role):
    """What a peer may do follows from the name in its certificate; no host can have the name of a role."""
    establish(tmp_path, ["h1"], NOW)
    assert peer_identity(handshake(*contexts(tmp_path, name))) == (name, role)


@pytest.mark.parametrize(
    "name", ["operator", "Master", "ca", "observer", "../../evil", "a/b", "", "-h1", "h_1", "h1.", "x" * 64, "h1\n"]
)
def test_a_name_that_is_a_role_s_or_no_host_s_is_refused(tmp_path, name):
    """Neither a new authority nor an old one issues such a certificate; nothing is written anywhere."""
    with pytest.raises(UsageError, match=r"that is a role's name|is not the name of a host \(RFC 1123\)"):
        establish(tmp_path / "new", ["h1", name], NOW)
    assert not (tmp_path / "new").exists()
    establish(tmp_path / "old", ["h1"], NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError):
        issue(tmp_path / "old", ["h1", "h2", name], NOW)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_certificates_end_after_a_year_and_are_renewed_before(tmp_path):
    """A certificate lives one year, and is replaced in its last thirty days."""
    establish(tmp_path, ["h1"], NOW)
    found = x509.load_pem_x509_certificate((tmp_path / "h1.pem").read_bytes())
    assert found.not_valid_after_utc - found.not_valid_before_utc == datetime.timedelta(days=365)
    assert ending(tmp_path, NOW + datetime.timedelta(days=300)) == []
    late = NOW + datetime.timedelta(days=340)
    assert set(ending(tmp_path, late)) == {"h1", "master", "observer", "operator"}
    issue(tmp_path, ["h1"], late)
    assert ending(tmp_path, late) == []
