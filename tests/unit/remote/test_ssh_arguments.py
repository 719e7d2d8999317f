"""The words of `ansible_ssh_common_args`."""

from pathlib import Path

import pytest

from c4bench.errors import UsageError
from c4bench.remote.ssh import SshArguments, parse


def test_without_words_ssh_s_own_defaults_hold():
    """Keys are checked against the user's known_hosts, and the user's configuration counts."""
    home = Path.home() / ".ssh"
    assert parse([]) == SshArguments((home / "known_hosts", home / "known_hosts2"), "", user_configuration=True)


@pytest.mark.parametrize("words", [["-oUserKnownHostsFile=/a /b"], ["-o", "userknownhostsfile /a /b"]])
def test_options_are_read_in_every_spelling(words):
    """Joined or apart, with a blank or an equals sign, in any case."""
    assert parse(words).known_hosts == (Path("/a"), Path("/b"))


def test_the_first_of_several_counts():
    """As in ssh: an option given again later has no effect."""
    assert parse(["-o", "ProxyCommand=first", "-o", "ProxyCommand=second"]).proxy_command == "first"
    assert parse(["-F", "none", "-F", "other"]).user_configuration is False


@pytest.mark.parametrize("words", [["-J", "gate"], ["-o", "ProxyJump=gate"], ["-C", "-Jgate"]])
def test_a_jump_host_becomes_a_proxy_command(words):
    """What ssh does itself for a jump host, said as a command."""
    assert parse(words).proxy_command == "ssh -W %h:%p gate"


@pytest.mark.parametrize("words", [["-z"], ["gate"], ["-o"]])
def test_what_ssh_would_refuse_is_refused(words):
    """An unknown option, a word that is not an option, and a missing value."""
    with pytest.raises(UsageError, match="ansible_ssh_common_args"):
        parse(words)
