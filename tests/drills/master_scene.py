"""Played in a lab by test_master_restart.py: a job under a master that is killed twice; told.json has what was seen."""

import asyncio
import json
import ssl
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import msgspec
from lab_master import LabMaster, until

from c4bench import inventory
from c4bench.control.client import dial
from c4bench.lab.spec import INVENTORY
from c4bench.model.steering import Action, Policy
from c4bench.wire.messages import LaunchJob, QueryResults
from c4bench.workload.jobs import job

TRUST, RUN = Path(sys.argv[1]), Path(sys.argv[2])
MASTER = LabMaster(TRUST)
CHECKPOINTS = "/run/c4/shared/drill"
OUTAGE_S = 2.0


async def ask(kind, count):
    """Results of the job's present attempt."""
    async with dial(MASTER.ADDRESS, TRUST, "operator") as master:
        return await master.ask(QueryResults("drill", kind, 60.0, count))


async def watch(count):
    """The first events that a watcher hears."""
    received = []
    async with dial(MASTER.ADDRESS, TRUST, "observer") as master:
        async for event in master.follow(0):
            received.append(msgspec.to_builtins(event))
            if len(received) == count:
                break
    return received


def diagnoses(received):
    """The diagnoses among events."""
    return [event["diagnosis"] for event in received if event["event"] == "diagnosis"]


def steps(said):
    """The steps whose losses were reported."""
    return sorted(body["first"] + index for body in said for index in range(len(body["losses"])))


def without_certificate():
    """What somebody hears who has the authority's certificate but none of their own."""
    tls = ssl.create_default_context(cafile=TRUST / "ca.pem")
    try:
        return MASTER.get("/health", tls=tls)
    except (urllib.error.URLError, OSError):
        return "refused"


async def start_job(hosts):
    """Two ranks that learn, and a spare."""
    sizes = {
        "gradient_bytes": 1 << 16,
        "token_bytes": 1 << 16,
        "state_bytes": 1 << 30,
        "start_s": 1.0,
        "report_every": 10,
    }
    spec = job("drill", "learning", hosts[:2], seed=3, checkpoints=CHECKPOINTS, checkpoint_every=20, **sizes)
    async with dial(MASTER.ADDRESS, TRUST, "operator") as master:
        await master.start(LaunchJob(spec, Policy(hang=Action.RESTART), hosts[2:]))


def main():
    """The scene."""
    announced = {}
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = inventory.load(Path(INVENTORY)).hosts
    MASTER.start()
    until(lambda: MASTER.connected() == len(hosts))
    asyncio.run(start_job(hosts))
    asyncio.run(ask("losses", 2))

    MASTER.kill()
    time.sleep(OUTAGE_S)
    MASTER.start()
    announced["steps_before"] = steps(asyncio.run(ask("losses", 4)))
    announced["agents"] = MASTER.connected()
    announced["restarts_by_outage"] = MASTER.health()["jobs"]["drill"]["restarts"]
    metrics = [
        line.rpartition(" ") for line in MASTER.get("/metrics").splitlines() if line.startswith("c4bench_agent_up{")
    ]
    announced["metrics"] = {"c4bench_agent_up": sum(float(value) for _, _, value in metrics)}
    announced["without_certificate"] = without_certificate()

    fault = [sys.executable, "-m", "c4bench.cli.main", "fault", "apply", "process.kill", f"drill:1@{hosts[1].name}"]
    subprocess.Popen([*fault, f"--hosts={INVENTORY}", f"--history={RUN}/faults.jsonl"], stdout=subprocess.DEVNULL)
    until(lambda: [one for one in MASTER.events("steering") if one["incident"]["isolated_s"]])
    MASTER.kill()
    announced["killed_s"] = time.time()
    announced["found_before"] = diagnoses(MASTER.events())
    MASTER.start()
    stages = until(lambda: [one["incident"] for one in MASTER.events("steering") if one["incident"]["resumed_s"]])
    announced["stages"] = stages[-1]
    announced["steps_after"] = steps(asyncio.run(ask("losses", 1)))
    announced["found_after"] = diagnoses(asyncio.run(watch(len(MASTER.events()))))
    state = json.loads((MASTER.STATE / "state.json").read_text())["jobs"]["drill"]["spec"]
    announced["attempt"], announced["hosts_after"] = state["id"], [member["host"] for member in state["members"]]
    (RUN / "told.json").write_text(json.dumps(announced))
    MASTER.kill()


if __name__ == "__main__":
    main()
