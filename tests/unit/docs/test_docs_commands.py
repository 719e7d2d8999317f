"""Commands and samples in the documents work as they stand there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documents import ROOT, agrees, blocks, files, mentioned, steps

from c4bench.cli import main as cli
from c4bench.inventory import load
from c4bench.inventory.review import review
from c4bench.lab import topology_file
from tools import __main__ as tools

CONSOLE = blocks("console")
TOP = ("tests", "faults", "c4bench", "pyproject.toml", "reports", "playbooks")


def run(block, folder, ran):
    """Run a block's commands, one after the other, in a folder that has the page's files, and add them to `ran`."""
    for name, text in files(block.page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in steps(block):
        command = step.command
        for name in files(block.page) if block.value == "lab" else ():
            command = command.replace(name, str(folder / name))
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=ROOT if block.value == "lab" else folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
            timeout=560,
        )
        assert done.returncode == 0, f"{block.name}: {command}\n{done.stdout}{done.stderr}"
        assert agrees(step.shown, done.stdout), f"{block.name}: {command}\n{done.stdout}"
        ran.append((block.name, step.command))


def named(block):
    return f"{block.name}:{steps(block)[0].command[:30]}"


@pytest.mark.parametrize("block", [block for block in CONSOLE if block.key != "run"], ids=named)
def test_commands_print_what_is_shown(block, tmp_path, commands_run):
    """A console block that needs nothing runs, and prints what the document shows."""
    for name in TOP:
        (tmp_path / name).symlink_to(ROOT / name)
    run(block, tmp_path, commands_run)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", [block for block in CONSOLE if block.key == "run"], ids=named)
def test_commands_in_the_lab_print_what_is_shown(block, tmp_path, commands_run):
    """A console block that needs a lab, or a minute, runs too, and prints what the document shows."""
    if block.value != "lab":
        for name in TOP:
            (tmp_path / name).symlink_to(ROOT / name)
    run(block, tmp_path, commands_run)


def test_no_block_is_marked_otherwise():
    """Console blocks are for anywhere, for the lab, or slow; and there are some of each."""
    assert {block.value for block in CONSOLE} == {"", "lab", "slow"}
    assert {block.key for block in CONSOLE} <= {"", "run"}


@pytest.mark.parametrize(("page", "line"), mentioned("c4bench"))
def test_the_command_line_knows_what_documents_name(page, line):
    """Each c4bench command with its options in a document is one that the command line accepts."""
    words = shlex.split(line.replace("...", "X"), comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    assert accepted(words), f"{page}: {line}"


@pytest.mark.parametrize(("page", "line"), mentioned("python -m tools"))
def test_the_tools_know_what_documents_name(page, line):
    """Each command of `python -m tools` in a document is one that it accepts."""
    assert accepted(shlex.split(line, comments=True)[3:], tools.parser()), f"{page}: {line}"


def accepted(words, parser=None):
    """Whether the command line takes these words; `--help` ends with code 0."""
    try:
        (parser or cli._parser()).parse_args(words)
    except SystemExit as ended:
        return ended.code == 0
    return True


SHOWN = [block for block in blocks("python") if block.key == "file"]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.name)
def test_a_file_is_shown_as_it_is(block):
    """A file of the repository stands in a document as it stands in the repository."""
    assert block.text == (ROOT / block.value).read_text()


def test_there_are_commands_to_check():
    """The documents name dozens of commands, so that none would be missed by a wrong pattern."""
    assert len(mentioned("c4bench")) > 40
    assert len(mentioned("python -m tools")) > 4
    assert len(CONSOLE) > 8
    assert len(SHOWN) == 2


def inventories():
    """Those of the documents; a fragment that has variables and no hosts is none."""
    found = [block for block in blocks("yaml") if block.text.startswith("all:")]
    return [block for block in found if "hosts" in yaml.safe_load(block.text)["all"]]


@pytest.mark.parametrize("block", inventories(), ids=lambda block: f"{block.name}:{block.text[5:40]!r}")
def test_sample_inventories_pass_their_own_check(block, tmp_path):
    """An inventory in a document is read, and its check finds no problem."""
    path = tmp_path / "hosts.yml"
    path.write_text(block.text)
    assert review(load(path)).problems == ()


@pytest.mark.parametrize(
    "block",
    [block for block in blocks("yaml") if block.text.startswith("name:") and "\nhosts:" in block.text],
    ids=lambda block: f"{block.name}:{block.text[:25]!r}",
)
def test_sample_topologies_can_be_built(block, tmp_path):
    """A topology in a document is one that the lab accepts."""
    path = tmp_path / "sample.yml"
    path.write_text(block.text)
    topology_file.load(str(path))


def test_output_that_differs_is_noticed():
    """Dots stand for anything, and everything else must be there."""
    assert agrees("a ... c\n...\nlast", "a b c\nmore\nmore\nlast")
    assert not agrees("a ... d", "a b c")
    assert not agrees("a", "a b")


def test_a_wrong_option_would_be_noticed():
    """An option and a command that do not exist are refused."""
    assert accepted(["report", "x"])
    assert not accepted(["report", "--no-such-option", "x"])
    assert not accepted(["no-such-command"])
