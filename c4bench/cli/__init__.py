"""The command line: thin, every command in its own module."""

import argparse
from typing import TypeAlias

# argparse has no public name for what add_subparsers returns.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
