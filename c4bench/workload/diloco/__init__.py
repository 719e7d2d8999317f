"""Streaming DiLoCo (Douillard et al., arXiv 2501.18512): training at several sites that synchronise seldom."""

from typing import Any

from c4bench.workload.context import RankContext


def run(context: RankContext) -> None:
    """Train, and report `ready`, `losses`, `evaluation`, and finally `trained` or `left` (see `job`)."""
    from c4bench.workload.diloco.job import Job  # noqa: PLC0415  (its modules import this package)
    from c4bench.workload.diloco.parameters import Diloco  # noqa: PLC0415

    parameters = context.parameters(Diloco)
    parameters.check()
    Job(context, parameters).run()


def check(parameters: dict[str, Any]) -> None:
    """Raise UsageError or ValidationError if a job with these parameters cannot run, as far as can be seen here."""
    from c4bench.workload.diloco import parameters as own  # noqa: PLC0415

    own.check(parameters)
