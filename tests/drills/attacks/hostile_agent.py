"""A master on this machine with two jobs, and what the agent of one host can try against the other's."""

import asyncio
import contextlib
import datetime
from pathlib import Path

import msgspec
from local_master import Scene

from c4bench.control.client import dial
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Flow, Nic
from c4bench.model.telemetry import Member
from c4bench.wire.messages import Empty, Hello, JobSpec, LaunchJob

RATE_BPS = 1e10
NICS = tuple(Nic(f"h{number}", 0, "", "", f"10.0.{number}.1", RATE_BPS) for number in range(2))
MEMBERS = tuple(Member(rank, nic.host, (nic.name,)) for rank, nic in enumerate(NICS))
SHARED = JobSpec("shared", "none", MEMBERS, NICS)
FAR = Nic("h9", 0, "", "", "10.0.9.1", RATE_BPS)
OTHER = JobSpec("other", "none", (Member(0, "h0", ("h0/0",)), Member(1, "h9", ("h9/0",))), (NICS[0], FAR))


def make_scene(folder):
    """A master whose authority knows three hosts."""
    valid_from = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.establish(folder / "trust", ["h0", "h1", "h9"], valid_from)
    return Scene(folder / "trust", folder)


def flow(source, destination, job="shared", demand_bps=RATE_BPS, rank=0):
    """A flow between two hosts' NICs."""
    name = f"{job}/{job}:data/{rank}>{1 - rank}/0.0"
    return Flow(name, job, f"{source}/0", f"{destination}/0", demand_bps)


@contextlib.asynccontextmanager
async def playing(scene, *jobs):
    """The agents of h0, h1 and h9 connected, and these jobs running on them; they are stopped at the end."""
    async with contextlib.AsyncExitStack() as stack:
        peers = {}
        for name in ("h0", "h1", "h9"):
            peers[name] = await stack.enter_async_context(scene.agent(name))
            await peers[name].call("hello", Hello(name, "1", "", "no RDMA device"), Empty)
        master = await stack.enter_async_context(dial(scene.address, scene.trust, "operator"))
        for job in jobs:
            await master.start(LaunchJob(job))
        try:
            yield peers
        finally:
            for job in jobs:
                await master.stop(job.id)


async def refusal(peer, method, body, answer=Empty):
    """What the master says to a request, in one line of at most a few hundred characters; empty if it answers."""
    try:
        await asyncio.wait_for(peer.call(method, body, answer), 10)
    except UnhealthyError as error:
        said = str(error)
        assert "\n" not in said, said
        assert len(said) < 400, said
        assert said.isprintable(), said
        return said
    return ""


def memory_bytes(scene):
    """What the master's process has in memory."""
    lines = Path(f"/proc/{scene.master.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def as_written(value):
    """A message's body."""
    return msgspec.Raw(msgspec.msgpack.encode(value))
