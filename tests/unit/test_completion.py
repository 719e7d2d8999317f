"""Completion of the command line, by the script as a real shell runs it."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys

import pytest

from c4bench.cli import main as cli

ASK = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_c4bench 2> /dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for bash, as a file."""
    path = tmp_path_factory.mktemp("completion") / "c4bench.bash"
    with pytest.MonkeyPatch.context() as patched, path.open("w") as file:
        patched.setattr("sys.stdout", file)
        assert cli.main(["completion", "bash"]) == 0
    return path


@pytest.fixture
def complete(script, tmp_path):
    """What bash offers for the last of these words, in a folder with a topology file of one's own."""
    (tmp_path / "mine.yml").touch()

    def ask(*words):
        given = ASK.format(words=shlex.join(["c4bench", *words]), last=len(words), script=script)
        shell = ["bash", "--norc", "--noprofile", "-c", given]
        answer = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert answer.stderr == ""
        return set(answer.stdout.split())

    return ask


def test_commands_and_actions_are_offered(complete):
    """A command by its beginning, then its actions, then the action's options."""
    assert complete("topo") == {"topology"}
    assert complete("fault", "") == {"list", "show", "apply", "status", "heal"}
    assert complete("lab", "run", "--t") == {"--time", "--topology"}
    assert complete("lab", "run", "--time", "") == {"virtual", "real"}


def test_topologies_are_offered_by_name_and_as_files(complete):
    """Wherever a topology is taken, those of the package and files in the folder are offered."""
    for words in (("topology", "show"), ("lab", "shell", "--topology"), ("workload", "run", "--topology")):
        assert complete(*words, "clos-2x8") == {"clos-2x8", "clos-2x8-2to1"}
        assert complete(*words, "mi") == {"mine.yml"}


def test_faults_and_suites_are_offered(complete):
    """A fault by its name in the catalogue, and a suite of the benchmark; no file is one."""
    assert complete("fault", "show", "nic.ra") == {"nic.rate"}
    assert complete("fault", "apply", "nic.ra") == {"nic.rate"}
    assert complete("bench", "per") == {"perftest"}
    assert complete("fault", "show", "mi") == set()


def test_files_are_offered_where_one_is_taken(complete):
    """An option that takes a path."""
    assert complete("paths", "--hosts", "mi") == {"mine.yml"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (apt-get install zsh)")
def test_zsh_completes_a_fault(capsys, tmp_path):
    """In an interactive zsh, Tab completes the name of a fault."""
    assert cli.main(["completion", "zsh"]) == 0
    path = tmp_path / "c4bench.zsh"
    path.write_text(capsys.readouterr().out)
    ours, theirs = pty.openpty()
    lines = f'autoload -U compinit && compinit -D && eval "$(<{path})"\nc4bench fault show nic.ra\t'
    with subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as shell:
        os.write(ours, lines.encode())
        shown = b""
        while b"show nic.rate" not in shown and select.select([ours], [], [], 20)[0]:
            shown += os.read(ours, 4096)
        shell.kill()
    assert b"show nic.rate" in shown, shown


def test_another_shell_is_refused(capsys):
    """The choices are named."""
    with pytest.raises(SystemExit):
        cli.main(["completion", "fish"])
    assert "bash" in capsys.readouterr().err


def test_without_the_library_the_command_says_what_to_install(monkeypatch, capsys):
    """One line, with the usage exit code."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "c4bench: shtab is not installed; pip install shtab\n"
