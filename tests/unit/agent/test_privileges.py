"""An agent that was started as root."""

import os
import pwd
import resource
from pathlib import Path

import pytest

from c4bench.agent import privileges
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.agent import AgentConfig

NOBODY = pwd.getpwnam("nobody")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def config(root, **changes):
    return AgentConfig(
        "h1", "m", "t", state=str(root / "state"), rings=str(root / "rings"), **({"user": "nobody"} | changes)
    )


def settled(settings, look):
    """What `look` says in a process that has settled."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            privileges.drop(settings)
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
    """The lines of our own status that tell of rights."""
    lines = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: lines[name].split() for name in ("Uid", "Gid", "CapPrm", "CapEff", "CapInh", "NoNewPrivs")}


def test_it_becomes_its_user_with_one_capability(tmp_path):
    """All its ids are the user's, no right is left but the ones named, and none can be gained."""
    mask = [f"{1 << 13:016x}"]
    user, group, none = [str(NOBODY.pw_uid)] * 4, [str(NOBODY.pw_gid)] * 4, [f"{0:016x}"]
    expected = {"Uid": user, "Gid": group, "CapPrm": mask, "CapEff": mask, "CapInh": none, "NoNewPrivs": ["1"]}
    assert settled(config(tmp_path), status) == str(expected)


def test_its_folders_are_its_own(tmp_path):
    """State and rings are made for it, and it may write there; memory may be locked as far as we may say so."""
    settings = config(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]

    def look():
        return resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] in (hard, resource.RLIM_INFINITY)

    assert settled(settings, look) == "True"
    assert {Path(folder).stat().st_uid for folder in (settings.state, settings.rings)} == {NOBODY.pw_uid}


def test_without_a_user_it_stays_what_it_is(tmp_path):
    """A configuration that names none changes nothing."""
    assert settled(config(tmp_path, user=""), os.geteuid) == "0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"user": "no-such-user"}, "there is no user 'no-such-user'"),
        ({"capabilities": ("net_row",)}, "'net_row' is no capability of an agent's"),
    ],
)
def test_a_wrong_word_is_named(tmp_path, changes, says):
    """Before anything is made or given up."""
    with pytest.raises(UsageError, match=says):
        privileges.drop(config(tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_else_has_made_is_refused(tmp_path):
    """In /dev/shm anybody could have put a link where ours should be."""
    (tmp_path / "rings").symlink_to("/etc")
    with pytest.raises(UnhealthyError, match="rings belongs to somebody else"):
        privileges.drop(config(tmp_path))
    assert Path("/etc").stat().st_uid == 0
