"""Played in a lab by test_path_service.py: two jobs under a master that plans, and that is killed in between.

seen.json has what was seen.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import yaml
from lab_master import LabMaster, until

from c4bench import inventory, remote
from c4bench.control.client import dial
from c4bench.control.paths.switches import Switches, carried_bytes
from c4bench.lab.spec import INVENTORY
from c4bench.wire.messages import QueryResults

TRUST, RUN = Path(sys.argv[1]), Path(sys.argv[2])
SIZE_BYTES = 8 << 20
PERIOD_S = 0.25
STEADY = {"size_bytes": SIZE_BYTES, "period_s": PERIOD_S}
BEFORE, AFTER = 3, 5
JOBS = 2


def start_job(hosts, number, operations):
    """`c4bench job start`: an all-reduce again and again, between two hosts under different leaves."""
    name = f"job{number}"
    document = {
        "name": name,
        "program": "steady",
        "hosts": [hosts[number].name, hosts[number + JOBS].name],
        "parameters": STEADY | {"operations": operations},
        "meeting": {"name": "all", "size": 2 * JOBS},
    }
    file = RUN / f"{name}.yml"
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "c4bench.cli.main", "job", "start", str(file), f"--hosts={INVENTORY}"]
    subprocess.run([*command, f"--trust={TRUST}"], check=True)


async def results(kind):
    """What each rank of each job reports."""
    async with dial(LabMaster.ADDRESS, TRUST, "operator") as master:
        return [await master.ask(QueryResults(f"job{number}", kind, 60.0, 2)) for number in range(JOBS)]


def learnt_paths(a, b):
    """`c4bench paths` between two hosts, as it prints them."""
    command = [sys.executable, "-m", "c4bench.cli.main", "paths", a, b, f"--hosts={INVENTORY}", f"--trust={TRUST}"]
    return subprocess.run([*command, f"--keep={RUN}/kept"], capture_output=True, text=True, check=True).stdout


def main():
    """The scene."""
    seen = {}
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    known = inventory.load(Path(INVENTORY))
    switches = Switches(known, lambda name: remote.connect(name, known.access[name]))
    master = LabMaster(TRUST, f"--hosts={INVENTORY}", "--background-every=1")
    master.start()
    until(lambda: master.connected() == len(known.hosts))
    for number in range(JOBS):
        start_job(known.hosts, number, BEFORE + AFTER)
    asyncio.run(results("ready"))
    seen["unplanned"] = master.health()["unplanned"]
    seen["metrics"] = [
        line for line in master.get("/metrics").splitlines() if line.startswith("c4bench_flows_unplanned")
    ]
    readings = [switches.ports()]
    time.sleep(BEFORE * PERIOD_S)
    until(lambda: max(carried_bytes(readings[0], switches.ports()).values()) > BEFORE * SIZE_BYTES)
    master.kill()
    master.start()
    seen["steady"] = asyncio.run(results("steady"))
    readings.append(switches.ports())
    seen["carried"] = carried_bytes(*readings)
    seen["switch"] = {hop: [port.switch, port.interface] for hop, port in readings[0].items()}
    seen["log"] = master.logs()
    seen["unplanned_after"] = master.health()["unplanned"]
    seen["paths"] = learnt_paths(known.hosts[0].name, known.hosts[JOBS].name)
    (RUN / "seen.json").write_text(json.dumps(seen))
    master.kill()


if __name__ == "__main__":
    main()
