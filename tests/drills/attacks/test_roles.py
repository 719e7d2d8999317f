"""Attacks with names and certificates: nobody gets the rights of a role that the authority has not given them."""

import asyncio
import datetime
import subprocess
import sys
import urllib.error

import pytest
from forged import CLIENT, SERVER, forge
from local_master import Scene

from c4bench.agent.agent import Agent
from c4bench.control.client import dial
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Member
from c4bench.wire.messages import (
    Empty,
    Hello,
    JobSpec,
    LaunchJob,
    LearnPaths,
    PathsJson,
    QueryResults,
    ReturnHost,
    StopRanks,
    Subscribe,
)

pytestmark = pytest.mark.attack("a certificate against the role that it states")
WITHIN_S = 20.0
MEMBERS = tuple(Member(rank, f"h{rank}", ()) for rank in range(2))
LAUNCH = LaunchJob(JobSpec("attacked", "none", MEMBERS, ()))
OPERATOR_CALLS = {
    "launch": LAUNCH,
    "stop": StopRanks("attacked"),
    "restore": ReturnHost("h0"),
    "ask": QueryResults("attacked", "done", 1.0),
    "learn": LearnPaths(("h0", "h1")),
    "subscribe": Subscribe(),
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A master on this machine, whose authority knows three hosts."""
    folder = tmp_path_factory.mktemp("roles")
    valid_from = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.establish(folder / "trust", ["h0", "h1", "h9"], valid_from)
    made = Scene(folder / "trust", folder)
    yield made
    made.kill()


@pytest.mark.parametrize("name", ["operator", "master", "ca", "observer", "../../evil"])
def test_a_host_cannot_be_called_like_a_role_or_a_path(tmp_path, name):
    """Preparing the deployment is refused in one line, and no file is made or changed."""
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{h1: {{}}, '{name}': {{}}}}}}")
    before = set(tmp_path.parent.rglob("*"))
    argv = [sys.executable, "-m", "c4bench.cli.main", "prepare", str(tmp_path / "hosts.yml"), str(tmp_path / "conf")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    new = set(tmp_path.parent.rglob("*")) - before
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not new


@pytest.mark.parametrize("method", OPERATOR_CALLS)
def test_an_agent_is_no_operator(scene, method):
    """What an operator may ask is no method for the certificate of a host, and no job starts."""

    async def ask():
        async with scene.agent("h0") as peer:
            await peer.call("hello", Hello("h0", "1", "", "no RDMA device"), Empty)
            with pytest.raises(UnhealthyError) as error:
                await peer.call(method, OPERATOR_CALLS[method], PathsJson if method == "learn" else Empty)
            return str(error.value)

    said = asyncio.run(ask())
    assert said == f"no method '{method}' here"
    assert scene.health()["jobs"] == {}


@pytest.mark.parametrize("method", [method for method in OPERATOR_CALLS if method != "subscribe"])
def test_an_observer_changes_nothing(scene, method):
    """An observer may follow events; to start or stop a job, or to ask for anything else, is no method for it."""

    async def ask():
        async with scene.agent("observer") as peer:
            with pytest.raises(UnhealthyError) as error:
                await peer.call(method, OPERATOR_CALLS[method], Empty)
            return str(error.value)

    said = asyncio.run(ask())
    assert said == f"no method '{method}' here"
    assert scene.health()["jobs"] == {}


@pytest.mark.parametrize(
    ("name", "roles"), [("h1", []), ("operator", []), ("h1", ["agent", "operator"]), ("operator", ["root"])]
)
def test_a_certificate_without_one_role_is_refused(scene, name, roles):
    """Of the right authority, but of an earlier version or forged: neither calls nor pages, and a line says why."""
    kept = {path: path.read_bytes() for path in scene.trust.glob(f"{name}.*")}
    forge(scene.trust, name, roles, [CLIENT])

    async def connect():
        async with scene.agent(name) as peer:
            await peer.call("launch", LAUNCH, Empty)

    try:
        with pytest.raises(UnhealthyError) as said:
            asyncio.run(connect())
        with pytest.raises(urllib.error.HTTPError, match="403"):
            scene.page("/health", name)
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    line = str(said.value)
    plain = f"'{name}' states" in line and "run c4bench prepare" in line and "\n" not in line
    assert plain, line
    assert scene.health()["jobs"] == {}


@pytest.mark.parametrize(
    ("roles", "purposes", "words"),
    [
        ([], [], "'master' states no role"),
        (["agent"], [SERVER], "'master' is for the role agent"),
        (["agent"], [CLIENT], "unsuitable certificate purpose"),
        (["operator", "master"], [SERVER], "where one role is needed"),
    ],
)
def test_nobody_poses_as_the_master(tmp_path, caplog, roles, purposes, words):
    """A server with the master's name in its certificate and not its role: no agent serves it, no operator asks it."""
    valid_from = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.establish(tmp_path / "trust", ["h0"], valid_from)
    forge(tmp_path / "trust", "master", roles, purposes)
    posing = Scene(tmp_path / "trust", tmp_path)
    caplog.set_level("WARNING", "c4bench")
    config = posing.config("h0")

    async def serve():
        async with dial(posing.address, posing.trust, "operator") as master:
            await master.start(LAUNCH)

    try:
        with pytest.raises(UnhealthyError) as said:
            asyncio.run(serve())
        agent = Agent(config, posing.tls("h0"), None)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(agent._keep_connected(), 2.0))
    finally:
        posing.kill()
    logged = [record.getMessage() for record in caplog.records]
    lines = [str(said.value), *logged]
    assert len(logged) == 1
    assert all(words in line for line in lines), lines
