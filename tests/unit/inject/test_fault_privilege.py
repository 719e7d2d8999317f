"""How the injector comes to be root's, and what it refuses to be led to."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import privilege
from c4bench.inject.journal import Journal
from c4bench.model.fault import TargetKind


@pytest.fixture
def operator(monkeypatch, tmp_path):
    """We are somebody, the injector is installed, and sudo allows it; what was executed comes back."""
    command = tmp_path / "bin/inject"
    command.parent.mkdir()
    command.touch()
    executed = []
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(privilege, "command_in", lambda _: command)
    monkeypatch.setattr(privilege.shutil, "which", lambda _: "/usr/bin/sudo")
    monkeypatch.setattr(privilege.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))

    def execute(_, argv):
        executed.append(argv)
        raise SystemExit

    monkeypatch.setattr(os, "execvp", execute)
    return command, executed


def test_the_rule_is_used_with_the_same_words(operator):
    """An operator's command goes on as root, word for word."""
    command, executed = operator
    with pytest.raises(SystemExit):
        privilege.become_root(["heal", "x y"], needed=True)
    assert executed == [["sudo", "-n", str(command), "heal", "x y"]]


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("command", "there is no .*/bin/inject for nobody to call by sudo; deploy"),
        ("sudo", "sudo is not installed; install it"),
        ("rule", "nobody may not call .*/bin/inject by sudo; deploy again with -e c4_operators=nobody"),
    ],
)
def test_the_error_names_what_is_missing_and_what_to_do(operator, monkeypatch, missing, says):
    """One line for each thing that can be wrong; what only looks goes on without root."""
    command, executed = operator
    match missing:
        case "command":
            command.unlink()
        case "sudo":
            monkeypatch.setattr(privilege.shutil, "which", lambda _: None)
        case "rule":
            monkeypatch.setattr(privilege.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(UnhealthyError, match=says):
        privilege.become_root(["heal"], needed=True)
    privilege.become_root(["status"], needed=False)
    assert executed == []


def test_root_stays_root():
    """A process that is root already does not execute itself again."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    privilege.become_root(["heal"], needed=True)


@pytest.mark.parametrize(
    ("said", "login", "who"),
    [
        ({}, "4294967295", 0),
        ({}, "0", 0),
        ({"SUDO_UID": ""}, None, 0),
        ({"SUDO_UID": "1000"}, "4294967295", 1000),
        ({"SUDO_UID": "0"}, "1000", 1000),
        ({"PKEXEC_UID": "1001"}, None, 1001),
        ({"SUDO_UID": "root"}, None, privilege.UNKNOWN),
    ],
)
def test_root_by_login_is_told_from_root_by_another_way(monkeypatch, tmp_path, said, login, who):
    """Either of what sudo says and what the kernel has kept since the login makes a caller somebody else."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privilege, "_LOGIN_USER", tmp_path / "loginuid")
    if login is not None:
        (tmp_path / "loginuid").write_text(login)
    for name in ("SUDO_UID", "PKEXEC_UID"):
        monkeypatch.setenv(name, said.get(name, ""))
    assert privilege.caller() == who


@given(st.text(max_size=20))
def test_a_name_stays_in_its_folder(name):
    """Whatever is let through as a name is one entry of the folder it is looked up in."""
    try:
        privilege.checked_name("fault", name)
    except UsageError:
        return
    assert Path("/a", name).parent == Path("/a")
    assert name not in (".", "..")


def test_the_journal_asks(tmp_path):
    """An id and a switch become paths only as names."""
    with pytest.raises(UsageError, match="is not the name of a fault"):
        Journal(tmp_path).find("../evil")
    with pytest.raises(UsageError, match="is not the name of a switch"):
        Journal.of(TargetKind.PORT, "../evil")
