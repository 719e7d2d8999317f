"""A rank's process: build its context, run its program, report how it failed if it did."""

from c4bench.errors import C4Error
from c4bench.model.agent import AgentConfig
from c4bench.wire.messages import JobSpec
from c4bench.workload.context import RankContext
from c4bench.workload.programs import program


def rank_main(job: JobSpec, rank: int, config: AgentConfig) -> int:
    """Run one rank to its end; the exit code is 0 when its program returned."""
    context = RankContext(job, rank, config)
    try:
        program(job.program)(context)
    except C4Error as error:
        context.report("error", error=str(error))
        return error.exit_code
    return 0
