"""Certificates of a fabric."""

import datetime
import ssl

import pytest
from cryptography import x509
from forged import CLIENT, SERVER, forge

from c4bench.deploy.authority import due, establish, issue, revoke, rotate
from c4bench.errors import UnhealthyError, UsageError
from c4bench.wire.trust import CLIENTS, Role, client_context, peer_identity, server_context

NOW = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


def handshake(server, client, name="master"):
    """The server's and the client's end of a TLS connection in memory, after the handshake."""
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
    return master, agent


def who(trust, host, agent_trust=None):
    """Whom the master takes a client for."""
    return peer_identity(handshake(*contexts(trust, host, agent_trust))[0], *CLIENTS)


def contexts(trust, host, agent_trust=None):
    files = agent_trust or trust
    return (
        server_context(trust / "ca.pem", trust / "master.pem", trust / "master.key"),
        client_context(trust / "ca.pem", files / f"{host}.pem", files / f"{host}.key"),
    )


def test_a_host_proves_its_name_to_the_master(tmp_path):
    """The master learns from the certificate who speaks."""
    establish(tmp_path, ["h1", "h2"], NOW)
    assert who(tmp_path, "h2").name == "h2"


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
    assert who(trust, "h2").name == "h2"
    assert (trust / "h1.pem").exists() == (change is rotate)
    if change is rotate:
        assert who(trust, "h1").name == "h1"


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
    assert {who(tmp_path, name).name for name in ("h1", "h2", "h3")} == {"h1", "h2", "h3"}


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
def test_a_certificate_states_its_role(tmp_path, name, role):
    """What a peer may do is stated in its certificate, beside its name."""
    establish(tmp_path, ["h1"], NOW)
    assert who(tmp_path, name) == (name, role)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([], "'h1' states no role, where one role is needed"),
        (["agent", "operator"], "'urn:c4bench:role:agent' and 'urn:c4bench:role:operator', where one"),
        (["agent", "agent"], "'urn:c4bench:role:agent' and 'urn:c4bench:role:agent', where one"),
        (["king"], "'h1' states 'urn:c4bench:role:king', where one role is needed"),
    ],
)
def test_a_certificate_without_one_known_role_is_refused(tmp_path, roles, words):
    """One line says whose certificate it is, what is wrong with it, and how to renew it."""
    establish(tmp_path, ["h1"], NOW)
    forge(tmp_path, "h1", roles, [CLIENT])
    with pytest.raises(UnhealthyError, match="; run c4bench prepare and") as refused:
        who(tmp_path, "h1")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_role_is_not_taken_from_a_name(tmp_path):
    """A certificate in the operator's name that states the role of an agent is an agent's."""
    establish(tmp_path, ["h1"], NOW)
    forge(tmp_path, "operator", ["agent"], [CLIENT])
    assert who(tmp_path, "operator") == ("operator", Role.AGENT)


@pytest.mark.parametrize(("roles", "purposes"), [(["agent"], [SERVER]), (["agent"], []), ([], [SERVER]), ([], [])])
def test_only_the_role_of_a_master_serves(tmp_path, roles, purposes):
    """A certificate in the master's name that may serve, but states no such role, is refused by every client."""
    establish(tmp_path, ["h1"], NOW)
    forge(tmp_path, "master", roles, purposes)
    agent = handshake(*contexts(tmp_path, "h1"))[1]
    with pytest.raises(UnhealthyError, match=r"the certificate of 'master' (states no role|is for the role agent)"):
        peer_identity(agent, Role.MASTER)


@pytest.mark.parametrize("name", ["h1", "operator"])
def test_a_client_s_certificate_does_not_serve(tmp_path, name):
    """The purpose in the certificate forbids it, whatever name the client expects."""
    establish(tmp_path, ["h1"], NOW)
    posing = server_context(tmp_path / "ca.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(posing, contexts(tmp_path, "h1")[1], name)


def test_the_master_s_certificate_does_not_connect(tmp_path):
    """The purpose of the master's certificate is to serve; with both purposes its role is refused."""
    establish(tmp_path, ["h1"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(*contexts(tmp_path, "master"))
    forge(tmp_path, "master", ["master"], [SERVER, CLIENT])
    with pytest.raises(UnhealthyError, match="is for the role master; use one for the role agent or operator or obs"):
        who(tmp_path, "master")


USAGES = ("digital_signature", "content_commitment", "key_encipherment", "key_agreement", "key_cert_sign", "crl_sign")


@pytest.mark.parametrize(
    ("name", "authority", "usages", "purpose"),
    [
        ("ca", True, {"key_cert_sign", "crl_sign"}, None),
        ("master", False, {"digital_signature"}, SERVER),
        ("h1", False, {"digital_signature"}, CLIENT),
        ("operator", False, {"digital_signature"}, CLIENT),
        ("observer", False, {"digital_signature"}, CLIENT),
    ],
)
def test_a_key_is_good_for_one_purpose(tmp_path, name, authority, usages, purpose):
    """The authority's key issues, the master's serves, all others connect; none is good for anything else."""
    establish(tmp_path, ["h1"], NOW)
    found = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes()).extensions
    constraints = found.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, authority)
    assert constraints.value.path_length == (0 if authority else None)
    usage = found.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, {name for name in USAGES if getattr(usage.value, name)}) == (True, usages)
    purposes = [list(one.value) for one in found if isinstance(one.value, x509.ExtendedKeyUsage)]
    assert purposes == ([[purpose]] if purpose else [])


@pytest.mark.parametrize(
    "name",
    [
        "operator",
        "Master",
        "ca",
        "observer",
        "../../evil",
        "a/b",
        "",
        "-h1",
        "h_1",
        "h1.",
        "x" * 64,
        "x." * 32 + "x",
        "h1\n",
    ],
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
    assert due(tmp_path, NOW + datetime.timedelta(days=300)) == []
    late = NOW + datetime.timedelta(days=340)
    assert set(due(tmp_path, late)) == {"h1", "master", "observer", "operator"}
    issue(tmp_path, ["h1"], late)
    assert due(tmp_path, late) == []


@pytest.mark.parametrize(("name", "roles"), [("h1", []), ("operator", []), ("h1", ["operator"]), ("h1", ["agent"] * 2)])
def test_a_certificate_without_its_role_is_renewed(tmp_path, name, roles):
    """One that an earlier version has issued, or that states another role, is due for renewal at once; others stay."""
    establish(tmp_path, ["h1", "h2"], NOW)
    before = (tmp_path / "h2.pem").read_bytes()
    forge(tmp_path, name, roles, [CLIENT])
    assert due(tmp_path, NOW) == [name]
    issue(tmp_path, ["h1", "h2"], NOW)
    assert due(tmp_path, NOW) == []
    assert who(tmp_path, name) == (name, Role.AGENT if name == "h1" else Role.OPERATOR)
    assert (tmp_path / "h2.pem").read_bytes() == before
