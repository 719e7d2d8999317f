"""The command line: thin, every command in its own module."""

import argparse

Commands = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for what add_subparsers returns)
