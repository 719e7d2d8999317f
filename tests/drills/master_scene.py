"""Played in a lab by test_master_restart.py: a job under a master that is killed twice; told.json has what was seen."""

import asyncio
import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from c4bench import inventory
from c4bench.control.client import dial
from c4bench.lab.spec import INVENTORY
from c4bench.model.steering import Action, Policy
from c4bench.wire.messages import PORT, LaunchJob, QueryResults
from c4bench.wire.trust import client_context
from c4bench.workload.jobs import job

ADDRESS = f"127.0.0.1:{PORT}"
STATE = Path("/run/c4/master")
TRUST, RUN = Path(sys.argv[1]), Path(sys.argv[2])
CHECKPOINTS = "/run/c4/shared/drill"
OUTAGE_S = 2.0


def start_master():
    """The command a user would run; returns once it listens."""
    command = [sys.executable, "-m", "c4bench.cli.main", "master", f"--trust={TRUST}", f"--listen=0.0.0.0:{PORT}"]
    process = subprocess.Popen([*command, f"--state={STATE}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("listening")
    return process


def kill(process):
    """As an administrator in a hurry, or the kernel, would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def get(page, **context):
    """A page of the master, by plain HTTPS."""
    observer = (TRUST / name for name in ("ca.pem", "observer.pem", "observer.key"))
    tls = context.get("tls") or client_context(*observer)
    tls.check_hostname = False
    with urllib.request.urlopen(f"https://{ADDRESS}{page}", context=tls, timeout=10) as answer:
        return answer.read().decode()


def until(holds, timeout_s=60.0):
    """Wait for something that a file or a page shows."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)
    return found


def events(kind):
    """What the master has told so far, by its log."""
    lines = (STATE / "events.jsonl").read_text().splitlines() if (STATE / "events.jsonl").exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


async def ask(kind, count):
    """Results of the job's present attempt."""
    async with dial(ADDRESS, TRUST, "operator") as master:
        return await master.ask(QueryResults("drill", kind, 60.0, count))


async def watch(count):
    """The first events that a watcher hears."""
    received = []
    async with dial(ADDRESS, TRUST, "observer") as master:
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
        return get("/health", tls=tls)
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
    async with dial(ADDRESS, TRUST, "operator") as master:
        await master.start(LaunchJob(spec, Policy(hang=Action.RESTART), hosts[2:]))


def main():
    """The scene."""
    announced = {}
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = inventory.load(Path(INVENTORY)).hosts
    master = start_master()
    until(lambda: sum(agent["connected"] for agent in json.loads(get("/health"))["agents"].values()) == len(hosts))
    asyncio.run(start_job(hosts))
    asyncio.run(ask("losses", 2))

    kill(master)
    time.sleep(OUTAGE_S)
    master = start_master()
    announced["steps_before"] = steps(asyncio.run(ask("losses", 4)))
    health = json.loads(get("/health"))
    announced["agents"] = sum(agent["connected"] for agent in health["agents"].values())
    announced["restarts_by_outage"] = health["jobs"]["drill"]["restarts"]
    metrics = [line.rpartition(" ") for line in get("/metrics").splitlines() if line.startswith("c4bench_agent_up{")]
    announced["metrics"] = {"c4bench_agent_up": sum(float(value) for _, _, value in metrics)}
    announced["without_certificate"] = without_certificate()

    fault = [sys.executable, "-m", "c4bench.cli.main", "fault", "apply", "process.kill", f"drill:1@{hosts[1].name}"]
    subprocess.Popen([*fault, f"--hosts={INVENTORY}", f"--history={RUN}/faults.jsonl"], stdout=subprocess.DEVNULL)
    until(lambda: [one for one in events("steering") if one["incident"]["isolated_s"]])
    kill(master)
    announced["killed_s"] = time.time()
    announced["found_before"] = diagnoses(map(json.loads, (STATE / "events.jsonl").read_text().splitlines()))
    master = start_master()
    stages = until(lambda: [one["incident"] for one in events("steering") if one["incident"]["resumed_s"]])
    announced["stages"] = stages[-1]
    announced["steps_after"] = steps(asyncio.run(ask("losses", 1)))
    announced["found_after"] = diagnoses(asyncio.run(watch(len((STATE / "events.jsonl").read_text().splitlines()))))
    state = json.loads((STATE / "state.json").read_text())["jobs"]["drill"]["spec"]
    announced["attempt"], announced["hosts_after"] = state["id"], [member["host"] for member in state["members"]]
    (RUN / "told.json").write_text(json.dumps(announced))
    kill(master)


if __name__ == "__main__":
    main()
