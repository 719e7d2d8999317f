"""A real SSH server, on a host of namespaces."""

import time

import msgspec
import netns_hosts
import pytest

from c4bench.errors import UnhealthyError
from c4bench.inventory import load
from c4bench.remote import Completed, connect

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with netns_hosts.netns_hosts(1, tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def access(hosts):
    return load(hosts.inventory).access["n1"]


@pytest.fixture
def host(access):
    with connect("n1", access) as connection:
        yield connection


def test_commands_run_over_one_login_with_bytes_in_and_out(host, hosts):
    """Arguments arrive as given, large streams in all directions do not block each other."""
    assert host.run(["printf", "%s", "a b'$HOME"], timeout_s=20).stdout == b"a b'$HOME"
    data = bytes(range(256)) * 20_000
    assert host.run(["sh", "-c", "tee /dev/stderr"], input=data, timeout_s=20) == Completed(0, data, data)
    assert sum("sshd: root" in words for words in hosts.hosts[0].processes()) == 1


def test_failure_and_timeout_have_different_errors(host):
    """A code, a missing command and a command that does not end each have their own words."""
    with pytest.raises(UnhealthyError, match="n1: sh failed with code 3: no luck"):
        host.run(["sh", "-c", "echo no luck >&2; exit 3"], timeout_s=20)
    assert host.run(["no-such-command"], timeout_s=20, check=False).code == 127
    with pytest.raises(UnhealthyError, match=r"n1: sleep did not end within 0.3 s"):
        host.run(["sleep", "2"], timeout_s=0.3)
    assert host.run(["echo", "still here"], timeout_s=20).stdout == b"still here\n"


def test_a_command_that_wants_no_input_does_not_mind_it(host):
    """Input that nobody reads is dropped, as a pipe would."""
    assert host.run(["true"], input=bytes(8 << 20), timeout_s=20).code == 0


def test_a_file_is_copied_with_its_mode(host, tmp_path):
    """An executable stays one; a target that cannot be is an error."""
    (tmp_path / "tool").write_text("#!/bin/sh\necho it runs\n")
    (tmp_path / "tool").chmod(0o755)
    host.put(tmp_path / "tool", "/tmp/tool")
    assert host.run(["/tmp/tool"], timeout_s=20).stdout == b"it runs\n"
    with pytest.raises(UnhealthyError, match=r"n1.*cannot copy"):
        host.put(tmp_path / "tool", "/none/tool")


def test_a_session_lives_on_the_host_and_ends_with_its_input(host, hosts):
    """The command runs there while the session is open, and is gone after it."""
    session = host.start(["sh", "-c", "while read line; do echo heard $line; done; exit 5"])
    session.write_line("one")
    assert session.read_line(20) == "heard one"
    assert any("while read line" in words for words in hosts.hosts[0].processes())
    session.close()
    assert session.exit_code == 5


def test_an_unknown_host_key_is_refused_and_not_added(access, tmp_path):
    """Neither fabric nor ssh lets in a host that known_hosts does not know."""
    known = tmp_path / "known_hosts"
    known.touch()
    stranger = msgspec.structs.replace(access, ssh_arguments=("-F", "none", "-o", f"UserKnownHostsFile={known}"))
    with connect("n1", stranger) as connection:
        with pytest.raises(UnhealthyError, match="its host key is not in known_hosts"):
            connection.run(["true"], timeout_s=20)
        session = connection.start(["true"])
        with pytest.raises(UnhealthyError, match="no connection: Host key verification failed"):
            session.read_line(20)
        session.close()
    assert known.read_text() == ""


def test_a_wrong_host_key_is_refused(access, tmp_path, hosts):
    """A host that answers with another key than the one known is not the host."""
    known = tmp_path / "known_hosts"
    other = (hosts.inventory.parent / "id.pub").read_text().split()
    known.write_text(f"{access.address} {other[0]} {other[1]}\n")
    stranger = msgspec.structs.replace(access, ssh_arguments=("-F", "none", "-o", f"UserKnownHostsFile={known}"))
    with pytest.raises(UnhealthyError, match="not the one in known_hosts"), connect("n1", stranger) as connection:
        connection.run(["true"], timeout_s=20)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_file": "host_key"}, "it rejects our key"),
        ({"port": 23}, "it cannot be connected to"),
        ({"address": "no-such-host.invalid"}, "its name does not resolve"),
    ],
)
def test_each_kind_of_failed_login_has_its_own_error(access, hosts, change, words):
    """The fix is different, so the message is."""
    if "key_file" in change:
        change = {"key_file": str(hosts.inventory.parent / change["key_file"])}
    wrong = msgspec.structs.replace(access, **change)
    with (
        connect("n1", wrong) as connection,
        pytest.raises(UnhealthyError, match=rf"^n1 \(.*\): cannot run true: {words}"),
    ):
        connection.run(["true"], timeout_s=20)


@pytest.mark.parametrize("stream", [1, 2])
def test_a_host_that_prints_without_end_is_given_up(host, stream):
    """What a command may print is bounded on both streams, and the error comes long before the time is over."""
    began = time.monotonic()
    with pytest.raises(UnhealthyError, match=r"^n1: sh: more than 8,388,608 bytes, .*; look at what it prints there$"):
        host.run(["sh", "-c", f"exec yes >&{stream}"], timeout_s=60)
    assert time.monotonic() - began < 30
    assert host.run(["echo", "on"], timeout_s=10).stdout == b"on\n"


def test_a_session_of_a_host_that_prints_without_end_is_given_up(host):
    """Neither a line without end nor complaints without end take the memory or the disk of this machine."""
    session = host.start(["sh", "-c", "tr '\\0' x < /dev/zero"])
    with pytest.raises(UnhealthyError, match=r"n1: sh sent a line of more than 8,388,608 bytes"):
        session.read_line(60)
    session.close()
    session = host.start(["sh", "-c", "yes >&2"])
    with pytest.raises(UnhealthyError, match=r"n1: sh ended"):
        session.read_line(60)
    session.close()
