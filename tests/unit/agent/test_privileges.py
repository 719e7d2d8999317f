"""An agent that was started as root gives up its rights."""

import os
import pwd
import resource
from pathlib import Path

import pytest

from c4bench.agent import main
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.agent import AgentConfig

NOBODY = pwd.getpwnam("nobody")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def config(root, **changes):
    return AgentConfig(
        "h1", "m", "t", state=str(root / "state"), rings=str(root / "rings"), **({"user": "nobody"} | changes)
    )


def settled(settings, look):
    """What `look` returns in a process that has dropped its privileges."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            main.drop_privileges(settings)
            os.write(writer, str(look()).encode())
        except Exception as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()


def status():
    """The lines of /proc/self/status on rights."""
    lines = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: lines[name].split() for name in ("Uid", "Gid", "CapPrm", "CapEff", "CapInh", "NoNewPrivs")}


def test_it_becomes_its_user_with_one_capability(tmp_path):
    """After dropping privileges all IDs are the user's, and only the configured capabilities are left and possible."""
    mask = [f"{1 << 13:016x}"]
    user, group, none = [str(NOBODY.pw_uid)] * 4, [str(NOBODY.pw_gid)] * 4, [f"{0:016x}"]
    expected = {"Uid": user, "Gid": group, "CapPrm": mask, "CapEff": mask, "CapInh": none, "NoNewPrivs": ["1"]}
    assert settled(config(tmp_path), status) == str(expected)


def test_its_folders_are_its_own(tmp_path):
    """Folders for state and rings are created for the user, and the limit of locked memory is lifted if possible."""
    settings = config(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]

    def look():
        return resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] in (hard, resource.RLIM_INFINITY)

    assert settled(settings, look) == "True"
    assert {Path(folder).stat().st_uid for folder in (settings.state, settings.rings)} == {NOBODY.pw_uid}


def test_without_a_user_nothing_is_dropped(tmp_path):
    """A configuration without a user changes nothing."""
    assert settled(config(tmp_path, user=""), os.geteuid) == "0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"user": "no-such-user"}, "there is no user 'no-such-user'"),
        ({"capabilities": ("net_row",)}, "'net_row' is no capability that an agent may keep"),
    ],
)
def test_an_unknown_user_or_capability_is_named(tmp_path, changes, says):
    """An unknown user or capability is an error that names it, before anything is created or dropped."""
    with pytest.raises(UsageError, match=says):
        main.drop_privileges(config(tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    """A folder or link that somebody else has created, as anybody may in /dev/shm, is refused."""
    (tmp_path / "rings").symlink_to("/etc")
    with pytest.raises(UnhealthyError, match="rings belongs to somebody else"):
        main.drop_privileges(config(tmp_path))
    assert Path("/etc").stat().st_uid == 0
