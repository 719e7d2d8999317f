"""Drop root privileges permanently when the agent starts.

The agent keeps unlimited locked memory for the NICs, and CAP_NET_RAW (capabilities(7)) to probe paths and to capture
what leaves an interface. Its ranks inherit both. Only the injector needs more rights.
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

# linux/capability.h: the capabilities that an agent may keep.
_NUMBERS = {"dac_read_search": 2, "net_raw": 13}
_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_libc = ctypes.CDLL(None, use_errno=True)


def drop(config: AgentConfig) -> None:
    """Create the agent's folders and become the configured user; do nothing if not root, or if no user is configured.

    Raises UsageError for an unknown user or capability, UnhealthyError for a folder that belongs to somebody else.
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
    """Create the folder for the user. Where anybody may write, somebody else could have created it first."""
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
        raise UsageError(
            f"agent.yml: {unknown[0]!r} is no capability that an agent may keep; there are {', '.join(_NUMBERS)}"
        )
    return sum(1 << _NUMBERS[name] for name in set(names))


def _become(user: pwd.struct_passwd, mask: int) -> None:
    """Keep only the capabilities of `mask`; no program started from here can gain more, not even a set-user-ID one."""
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
