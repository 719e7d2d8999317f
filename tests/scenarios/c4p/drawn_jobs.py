"""The job that most scenarios of path planning run: the same all-reduce with each way to choose paths in turn."""

import msgspec

from c4bench.workload.jobs import job


def draws_job(meeting, number, hosts, rounds, **parameters):
    """The spec of job `number`: an all-reduce over these hosts in each round, before which all of the meeting meet."""
    name = f"{meeting.name}-{number}".replace(" ", "-")
    spec = job(name, "draws", hosts, seed=1, rounds=tuple(rounds), **parameters)
    return msgspec.structs.replace(spec, meeting=meeting)
