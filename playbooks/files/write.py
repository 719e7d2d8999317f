"""Give this host the agent's user and files. deploy.yml appends a call of `write` to this text, and runs it as root.

Prints one line of JSON: which of them were not as they should be, and whether systemd runs the host. Every file is
replaced whole, by a rename in its own folder: nobody reads half of one, or a key that is not yet protected.
"""

import base64
import grp
import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

USER = "user"


def write(order: str) -> None:
    """Make what is wanted and is not there; with `check` only say so."""
    wanted = json.loads(base64.b64decode(order))
    systemd = Path("/run/systemd/system").is_dir()
    written = []
    if not exists(pwd.getpwnam, wanted["user"]):
        written.append(USER)
        if not wanted["check"]:
            add_user(wanted["user"])
    for file in wanted["files"]:
        if (systemd or not file["systemd"]) and differs(file):
            written.append(file["path"])
            if not wanted["check"]:
                (make_folder if file["content"] is None else replace)(file)
    sys.stdout.write(json.dumps({"written": written, "systemd": systemd}) + "\n")


def exists(look_up: Callable[[str], object], name: str) -> bool:
    """Whether there is a user or a group of this name."""
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def add_user(name: str) -> None:
    """An account that nobody logs in to, in the group of its name."""
    group = ["--gid", name] if exists(grp.getgrnam, name) else ["--user-group"]
    home = ["--system", "--home-dir", "/nonexistent", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    run(["useradd", *home, *group, name])


def run(argv: list[str]) -> None:
    """Run it, or end with what it says."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{argv[0]}: {' '.join(done.stdout.split())}")


def differs(file: dict[str, Any]) -> bool:
    """Whether a file or a folder is not there, or another."""
    path, folder = Path(file["path"]), file["content"] is None
    try:
        found = path.stat() if folder else path.lstat()
    except FileNotFoundError:
        return True
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode) or not exists(grp.getgrnam, file["group"]):
        return True
    owned = (found.st_uid, found.st_gid) == (0, grp.getgrnam(file["group"]).gr_gid)
    return not owned or stat.S_IMODE(found.st_mode) != file["mode"] or (not folder and path.read_bytes() != held(file))


def held(file: dict[str, Any]) -> bytes:
    """What a file should hold."""
    return base64.b64decode(file["content"])


def make_folder(file: dict[str, Any]) -> None:
    """Make it where it is missing; others enter it no sooner than they may."""
    path = Path(file["path"])
    if not path.is_dir():
        path.mkdir(0o700)
    os.chown(path, 0, grp.getgrnam(file["group"]).gr_gid)
    path.chmod(file["mode"])


def replace(file: dict[str, Any]) -> None:
    """Put another file in its place, once that is complete, is root's, and is found to be valid."""
    path = Path(file["path"])
    handle, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as made:
            made.write(held(file))
            os.fchown(handle, 0, grp.getgrnam(file["group"]).gr_gid)
            os.fchmod(handle, file["mode"])
        if file["validate"]:
            run([*file["validate"], unfinished])
        Path(unfinished).rename(path)
    except BaseException:
        Path(unfinished).unlink()
        raise
