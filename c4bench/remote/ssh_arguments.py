"""Parse the part of ssh's command line that inventories use, for the paramiko client."""

import getopt
from collections.abc import Sequence
from pathlib import Path

import msgspec

from c4bench.errors import UsageError

# ssh(1), SYNOPSIS: letters followed by a colon take a value.
_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"


class SshArguments(msgspec.Struct, frozen=True):
    """`known_hosts` are the files host keys are checked against; `proxy_command` reaches the host ("" directly)."""

    known_hosts: tuple[Path, ...]
    proxy_command: str
    user_configuration: bool


def parse(words: Sequence[str]) -> SshArguments:
    """Parse `ansible_ssh_common_args`. Raises UsageError for an option ssh does not have."""
    try:
        pairs, rest = getopt.getopt(list(words), _OPTIONS)
    except getopt.GetoptError as error:
        raise UsageError(f"ansible_ssh_common_args: {error}; see ssh(1)") from None
    if rest:
        raise UsageError(f"ansible_ssh_common_args: {rest[0]!r} is not an option; see ssh(1)")
    options: dict[str, str] = {}
    for _, text in (pair for pair in pairs if pair[0] == "-o"):
        key, _, value = text.replace("=", " ", 1).strip().partition(" ")
        options.setdefault(key.lower(), value.strip())
    letters = dict(reversed(pairs))  # as in ssh, the first occurrence counts
    jump = letters.get("-J") or options.get("proxyjump", "")
    known = options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    return SshArguments(
        known_hosts=tuple(Path(name).expanduser() for name in known),
        proxy_command=options.get("proxycommand", "") or (f"ssh -W %h:%p {jump}" if jump else ""),
        user_configuration=letters.get("-F") != "none",
    )
