"""Host patterns, as on Ansible's command line."""

from fnmatch import fnmatchcase

from c4bench.errors import UsageError
from c4bench.inventory.inventory import Inventory
from c4bench.model.fabric import Host

_SHOWN = 8


def select(inventory: Inventory, pattern: str) -> tuple[Host, ...]:
    """The hosts that `pattern` matches, in the order of the inventory.

    A pattern is a comma list of host names, group names (`all` is one) and globs; `!term` removes hosts, `&term`
    keeps only those. Raises UsageError when a term, or the whole pattern, matches nothing.
    """
    terms = [word.strip() for word in pattern.split(",") if word.strip()]
    plain = [word for word in terms if word[0] not in "!&"] or ["all"]
    chosen = set().union(*(_matches(inventory, word) for word in plain))
    for word in terms:
        if word[0] == "&":
            chosen &= _matches(inventory, word[1:])
        elif word[0] == "!":
            chosen -= _matches(inventory, word[1:])
    hosts = tuple(host for host in inventory.hosts if host.name in chosen)
    if not terms or not hosts:
        raise UsageError(f"{inventory.path}: no host matches {pattern!r}; {_choices(inventory)}")
    return hosts


def _matches(inventory: Inventory, word: str) -> set[str]:
    names = {host.name for host in inventory.hosts if fnmatchcase(host.name, word)}
    known = word in inventory.groups
    for name, members in inventory.groups.items():
        if fnmatchcase(name, word):
            names.update(members)
    if not names and not known:
        raise UsageError(f"{inventory.path}: {word!r} matches no host and no group; {_choices(inventory)}")
    return names


def _choices(inventory: Inventory) -> str:
    names = [host.name for host in inventory.hosts]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the hosts are {', '.join(names[:_SHOWN])}{more}"
