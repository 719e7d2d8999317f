"""What deploy.yml writes on a host: each file whole, with its owner and its mode, and only where it differs."""

import base64
import importlib.util
import json
import os

import pytest

from c4bench.resources import resource

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: it gives files to root")
_spec = importlib.util.spec_from_file_location("write", resource("playbooks", "files", "write.py"))
program = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)
FOLDER, KEY, RULE = "etc", "etc/key.pem", "etc/rule"


@pytest.fixture
def write(tmp_path, capsys):
    """Write a folder with a key and a rule, as deploy.yml does; which of them were not as they should be."""

    def write(key="secret", rule="good", *, check=False):
        def file(path, mode, content, **rest):
            held = None if content is None else base64.b64encode(content.encode()).decode()
            common = {"path": f"{tmp_path}/{path}", "mode": mode, "group": "root", "content": held}
            return {"validate": [], "systemd": False} | common | rest

        files = [
            file(FOLDER, 0o750, None),
            file(KEY, 0o640, key),
            file(RULE, 0o440, rule, validate=["grep", "good"]),
        ]
        wanted = {"user": "root", "files": files, "check": check}
        program.write(base64.b64encode(json.dumps(wanted).encode()).decode())
        return [os.path.relpath(path, tmp_path) for path in json.loads(capsys.readouterr().out)["written"]]

    return write


def test_what_is_as_it_should_be_is_left_alone(write, tmp_path):
    """All is written once, with its mode; the second time nothing is touched."""
    assert write() == [FOLDER, KEY, RULE]
    assert {path: (tmp_path / path).stat().st_mode & 0o777 for path in (FOLDER, KEY, RULE)} == {
        FOLDER: 0o750,
        KEY: 0o640,
        RULE: 0o440,
    }
    before = (tmp_path / KEY).stat()
    assert write() == []
    assert (tmp_path / KEY).stat() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("other"),
        lambda path: path.chmod(0o644),
        lambda path: os.chown(path, 1, 0),
        lambda path: os.chown(path, 0, 1),
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
        lambda path: path.unlink(),
    ],
    ids=["content", "mode", "owner", "group", "link", "missing"],
)
def test_a_file_that_differs_is_replaced(write, tmp_path, spoil):
    """Its content, mode, owner, group and kind are restored, nothing else is written, and a link is not followed."""
    write()
    spoil(tmp_path / KEY)
    assert write(check=True) == [KEY]
    assert write() == [KEY]
    found = (tmp_path / KEY).lstat()
    assert (oct(found.st_mode), found.st_uid, found.st_gid) == ("0o100640", 0, 0)
    assert (tmp_path / KEY).read_text() == "secret"


def test_what_is_only_tried_writes_nothing(write, tmp_path):
    """In check mode all that would be written is named, and nothing is there afterwards."""
    assert write(check=True) == [FOLDER, KEY, RULE]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_refused_stays_as_it_was(write, tmp_path):
    """A sudo rule that visudo does not take is not written, and leaves no half-made file."""
    write()
    with pytest.raises(SystemExit, match="grep"):
        write(rule="bad")
    assert (tmp_path / RULE).read_text() == "good"
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["key.pem", "rule"]
