"""Certificates of a fabric."""

import datetime
import ssl

import pytest

from c4bench.deploy.authority import establish
from c4bench.wire.trust import client_context, peer_name, server_context

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
    assert peer_name(handshake(*contexts(tmp_path, "h2"))) == "h2"


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
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(posing, contexts(tmp_path, "h1")[1])


def test_keys_are_for_their_owner_only(tmp_path):
    """No private key can be read by others."""
    establish(tmp_path, ["h1"], NOW)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {0o600}
