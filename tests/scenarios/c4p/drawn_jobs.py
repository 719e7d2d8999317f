"""The job that most scenarios of path planning run: the same all-reduce with each way to choose paths in turn."""

import msgspec

from c4bench.model.qp_address import QpAddress
from c4bench.workload.jobs import job


def draws_job(meeting, number, hosts, rounds, **parameters):
    """The spec of job `number`: an all-reduce over these hosts in each round, before which all of the meeting meet."""
    name = f"{meeting.name}-{number}".replace(" ", "-")
    spec = job(name, "draws", hosts, seed=1, rounds=tuple(rounds), **parameters)
    return msgspec.structs.replace(spec, meeting=meeting)


def qps_of(cluster, jobs, number):
    """The number of QPs that every planned connection of a round had, in jobs that are running."""
    of_connections = {}
    for running in jobs:
        for flow in cluster.placed(running.spec.id):
            address = QpAddress.parse(flow)
            if address.comm.endswith(f":draw{number}"):
                of_connections.setdefault(address.connection, set()).add(address.qp)
    (qps,) = {len(mine) for mine in of_connections.values()}
    return qps
