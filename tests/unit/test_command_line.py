"""The command line imports the module of the command that it is given, and no other."""

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
    assert "c4bench.cli.topology" in loaded
    assert not loaded & {"c4bench.cli.bench", "c4bench.control.master"}


@pytest.mark.parametrize("words", [[], ["--help"], ["nonsense"], ["completion", "bash"]])
def test_without_a_command_all_are_known(words):
    """Help, completion and the error for a misspelt command name every command."""
    assert len(commands_of(cli._parser(*words[:1]))) == sum(len(names) or 1 for names in cli._COMMANDS.values())
    assert len(commands_of(cli._parser("watch"))) == 4


def commands_of(parser):
    return parser._subparsers._group_actions[0].choices
