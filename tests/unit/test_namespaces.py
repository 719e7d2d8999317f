"""Network namespaces are opened once, checked, and never waited for."""

import os
import subprocess
import threading
from contextlib import ExitStack

import pytest

from c4bench import namespaces

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def bound():
    """Paths at which new network namespaces are bound, as `ip netns` does it; each has an address that tells it."""
    names = [f"c4bench-test-{os.getpid()}-{number}" for number in range(2)]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
            subprocess.run(["ip", "-n", name, "address", "add", f"10.99.0.{number}/32", "dev", "lo"], check=True)
        yield [f"/run/netns/{name}" for name in names]


def links(path):
    with namespaces.network(path):
        return subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True).stdout


def test_a_pinned_namespace_cannot_be_exchanged(bound, tmp_path):
    """Within the block the same namespace is entered, whatever is put at its path meanwhile."""
    first, second = bound
    path = tmp_path / "netns"
    path.symlink_to(first)
    with namespaces.pinned({str(path): 0}) as inodes:
        path.unlink()
        path.symlink_to(second)
        assert "10.99.0.0" in links(str(path))
    assert "10.99.0.1" in links(str(path))
    with pytest.raises(OSError, match="is another network namespace than before"), namespaces.pinned(inodes):
        pass


def test_what_is_no_namespace_is_refused_at_once(bound, tmp_path):
    """A FIFO, a file and a namespace of another kind are errors, not a wait."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for path in (tmp_path / "fifo", tmp_path / "file", "/proc/self/ns/mnt"):
        refused = threading.Event()

        def enter(path=path, refused=refused):
            try:
                links(str(path))
            except OSError:
                refused.set()

        threading.Thread(target=enter, daemon=True).start()
        assert refused.wait(5.0), path
    assert "10.99.0.0" in links(bound[0])


def test_a_namespace_of_another_user_namespace_is_refused():
    """A user who has created a user namespace is root only there: its network namespace is refused."""
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline() != "ready\n":
            pytest.skip("unsupported: this machine allows no user namespaces")
        with pytest.raises(OSError, match=r"another user namespace|not permitted"):
            links(f"/proc/{process.pid}/ns/net")
        process.kill()
