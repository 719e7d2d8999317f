"""The live page of a run: what pytest's master knows comes to the page through the run directory."""

import asyncio
import json
import signal
import ssl
import subprocess
import sys

import pytest
from page_scene import PageScene

from c4bench.cli.main import main
from c4bench.live.feed import FILE, RunFeed, keep_state
from c4bench.model.event import HostReturned


@pytest.fixture
def scene(tmp_path):
    """A job of four hosts in which a NIC became slow."""
    made = PageScene(tmp_path, hosts=4, per_leaf=2)
    made.advance(8.0)
    yield made
    made.stop()


def kept(scene, run):
    """The state of the run, as it is kept now."""

    async def once():
        task = asyncio.create_task(keep_state(scene.parts, run, scene.now_s))
        await asyncio.sleep(0.05)
        task.cancel()

    scene.call(once)
    return json.loads((run / FILE).read_text())


def test_the_state_has_what_the_page_shows(scene, tmp_path):
    """Hosts, the job with its matrix, and the finding are in the file, which is replaced at once."""
    found = kept(scene, tmp_path)
    assert [host["host"] for host in found["fleet"]["hosts"]] == ["h0", "h1", "h2", "h3"]
    assert found["jobs"][0]["name"] == "train"
    assert "nic h3/0 (tx)" in [entry["subject"] for entry in found["entries"]]
    assert not list(tmp_path.glob(f".{FILE}.*"))


def test_the_page_follows_the_file(scene, tmp_path):
    """A viewer gets the whole timeline first, then only new entries, and the state whenever it changes."""
    kept(scene, tmp_path)

    async def follow():
        messages = RunFeed(tmp_path).follow("")
        first = [await anext(messages), await anext(messages)]
        scene.parts.log.publish(HostReturned(scene.now_s() + 1.0, "h2"))
        task = asyncio.create_task(keep_state(scene.parts, tmp_path, scene.now_s))
        async with asyncio.timeout(10):
            while not (later := await anext(messages)).startswith(b"event: entries"):
                pass
        task.cancel()
        return first, later

    first, later = scene.call(follow)
    assert first[0].startswith(b"event: timeline")
    assert b"event: fleet" in first[1]
    assert b"event: job" in first[1]
    assert [entry["subject"] for entry in json.loads(later.partition(b"data: ")[2])] == ["h2"]


def test_the_command_serves_a_run(scene, tmp_path):
    """`c4bench page` prints address, token and fingerprint, lets the token in and nobody else, and ends with Ctrl-C."""
    kept(scene, tmp_path)
    words = [sys.executable, "-m", "c4bench.cli.main", "page", str(tmp_path), "--port", "0"]
    # Tests that a shell runs in the background would pass on that they ignore interrupts.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    page = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heed)
    try:
        scene.address = page.stdout.readline().strip().rstrip("/")
        token, digest = (page.stdout.readline().split()[1] for _ in range(2))
        scene.certificate.write_text(pem_of(scene.address))
        assert scene.request("/main.js")[0] == 401
        assert scene.request("/main.js", cookie=f"__Host-c4bench={token}")[0] == 200
        with scene.stream(cookie=f"__Host-c4bench={token}") as messages:
            assert next(messages)[0] == "timeline"
        assert len(digest.split(":")) == 32
    finally:
        page.send_signal(signal.SIGINT)
        _, errors = page.communicate(timeout=20)
    assert (page.returncode, errors) == (0, "")


def pem_of(address):
    """The certificate of a server on this machine."""
    host, _, port = address.removeprefix("https://").partition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_run_without_state_is_refused(tmp_path, capsys):
    """A run that keeps no state is named, with the option that it lacks."""
    assert main(["page", str(tmp_path), "--port", "0"]) == 2
    assert "run pytest with --c4-page" in capsys.readouterr().err
