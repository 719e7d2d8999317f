"""Run one bench stage inside the lab: a master, the hosts' agents, and the stage's cases."""

import argparse
from pathlib import Path

import msgspec

from c4bench.bench.cases import Stage
from c4bench.bench.measures import measure
from c4bench.bench.session import Session
from c4bench.control.cluster import Cluster
from c4bench.inventory import load
from c4bench.lab.spec import INVENTORY
from c4bench.lab.topology import MANAGEMENT_GATEWAY
from c4bench.record import RunDirectory
from c4bench.wire.messages import PORT

_AGENTS_WITHIN_S = 30.0


def main(argv: list[str] | None = None) -> int:
    """Measure the stage in the file named first; figures go to the run directory named second."""
    parser = argparse.ArgumentParser(prog="python -m c4bench.bench.in_lab")
    parser.add_argument("stage", type=Path)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--trust", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(argv)
    stage = msgspec.json.decode(options.stage.read_bytes(), type=Stage)
    hosts = [host for host in load(Path(INVENTORY)).hosts if host.nics]
    with Cluster(hosts, options.trust, MANAGEMENT_GATEWAY, PORT) as cluster:
        cluster.wait_hosts([host.name for host in hosts], _AGENTS_WITHIN_S)
        session = Session(stage, RunDirectory(options.run_directory), cluster, options.seed)
        for case in stage.cases:
            measure(session, case)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
