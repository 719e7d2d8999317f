"""Drop root privileges permanently when the agent starts.

What it needs of root's rights is memory that the NICs may hold, without limit, and CAP_NET_RAW, to probe paths and to
see what leaves an interface (capabilities(7)). Its ranks inherit both. Everything else is the injector's.
"""

import ctypes
import os
import pwd
import resource
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.agent import AgentConfig

# linux/capability.h: the names that an agent may be given.
_NUMBERS = {"dac_read_search": 2, "net_raw": 13}
_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_libc = ctypes.CDLL(None, use_errno=True)


def drop(config: AgentConfig) -> None:
    """Become the configuration's user, its own folders made; does nothing for one who is not root, or is to stay it.

    Raises UsageError for a user or a capability that does not exist, UnhealthyError for a folder that is not ours.
    """
    if os.geteuid() != 0 or not config.user:
        return
    try:
        user = pwd.getpwnam(config.user)
    except KeyError:
        raise UsageError(f"agent.yml: there is no user {config.user!r} on this host; deploy again") from None
    mask = _mask(config.capabilities)
    for folder in (config.state, config.rings):
        _own(Path(folder), user)
    with suppress(ValueError):  # a container's root may not raise the container's limit
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _become(user, mask)


def _own(folder: Path, user: pwd.struct_passwd) -> None:
    """Make the folder the user's. In a place where anybody may write, somebody else could have made it first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, user.pw_uid}:
            raise UnhealthyError(f"{folder} belongs to somebody else (user {status.st_uid}); remove it") from None
    os.chown(folder, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _mask(names: Iterable[str]) -> int:
    unknown = sorted(set(names) - _NUMBERS.keys())
    if unknown:
        raise UsageError(f"agent.yml: {unknown[0]!r} is no capability of an agent's; there are {', '.join(_NUMBERS)}")
    return sum(1 << _NUMBERS[name] for name in set(names))


def _become(user: pwd.struct_passwd, mask: int) -> None:
    """Keep `mask` and nothing else; no program that we start can gain more, set-user-ID or not."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    header = struct.pack("=Ii", _VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise UnhealthyError(f"the agent cannot give up root: {what}: {os.strerror(ctypes.get_errno())}")
