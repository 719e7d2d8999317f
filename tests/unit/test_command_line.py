"""The command line imports the module of the command that it is given, and no other; each explains itself."""

import argparse
import re
import subprocess
import sys
from importlib import import_module

import pytest

from c4bench.cli import main as cli

LOADED = "import sys; from c4bench.cli import main; main._parser(sys.argv[1]); print(*sys.modules)"


@pytest.mark.parametrize("module", cli._COMMANDS)
def test_each_module_adds_the_commands_that_it_is_listed_with(module):
    """A command whose module is listed without it would be found only with all others."""
    parser = cli._Parser()
    commands = parser.add_subparsers()
    import_module(f"c4bench.cli.{module}").register(commands)
    assert tuple(commands.choices) == (cli._COMMANDS[module] or (module,))


def test_a_command_does_not_wait_for_the_import_of_others():
    """Listing topologies needs neither the master nor the benchmarks."""
    done = subprocess.run([sys.executable, "-c", LOADED, "topology"], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "c4bench.cli.lab" in loaded
    assert not loaded & {"c4bench.cli.bench", "c4bench.control.master"}


@pytest.mark.parametrize("words", [[], ["--help"], ["nonsense"], ["completion", "bash"]])
def test_without_a_command_all_are_known(words):
    """Help, completion and the error for a misspelt command name every command."""
    assert len(commands_of(cli._parser(*words[:1]))) == sum(len(names) or 1 for names in cli._COMMANDS.values())
    assert len(commands_of(cli._parser("watch"))) == 4


def test_help_lists_every_command_once_under_a_heading():
    """`c4bench --help` shows related commands together."""
    shown = cli._parser().format_help().partition("commands:")[2]
    assert all(f"\n {heading}\n" in shown for heading in cli._GROUPS)
    names = [name for module, names in cli._COMMANDS.items() for name in names or (module,)]
    assert re.findall(r"^  ([a-z-]+) ", shown, re.MULTILINE) == names


def test_every_command_has_a_description():
    """`c4bench COMMAND --help` says what the command does."""
    assert [words for words, parser in parsers() if not parser.description] == []


def test_every_argument_has_help():
    """No option of a command is only a name."""
    assert [f"{words} {action.dest}" for words, action in arguments() if not action.help] == []


def test_values_are_named_in_capitals():
    """What a user replaces is in capitals; the rest of a value's form is written as it stands."""
    literal = re.compile(r"\.yml$|softroce|nats://|[][:|=]")
    found = [(words, action.dest, shown) for words, action in arguments() for shown in values(action)]
    assert [one for one in found if not re.fullmatch(r"[A-Z_0-9]+", literal.sub("", one[2]))] == []


def parsers(parser=None, words="c4bench"):
    """Every command below `parser` with its words."""
    for name, command in commands_of(parser or cli._parser()).items():
        yield f"{words} {name}", command
        if command._subparsers:
            yield from parsers(command, f"{words} {name}")


def arguments():
    """Every argument of a command that its help shows."""
    for words, parser in parsers():
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction):
                yield words, action


def values(action):
    """The names by which help shows what an argument takes; "" for an option whose value has the option's own name."""
    if action.nargs == 0 or action.choices:
        return ()
    return action.metavar if isinstance(action.metavar, tuple) else (action.metavar or "",)


def commands_of(parser):
    return parser._subparsers._group_actions[0].choices
