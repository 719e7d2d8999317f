"""The ranks that an agent keeps for its host."""

import subprocess
import sys

from c4bench.agent.ranks import Ranks
from c4bench.agent.spawner import Exited, Started
from c4bench.model.agent import AgentConfig


def test_stopping_a_job_survives_a_rank_that_has_just_ended(tmp_path):
    """Stopping a job ends its ranks even if one has ended and its exit is not reported yet."""
    ranks = Ranks(AgentConfig("h0", "10.0.0.1", str(tmp_path), rings=str(tmp_path)))
    gone, there = (subprocess.Popen([sys.executable, "-c", code]) for code in ("", "import time; time.sleep(60)"))
    gone.wait()
    for rank, process in enumerate((gone, there)):
        ranks.started(Started("job", rank, process.pid))
    ranks.stop("job")
    assert there.wait(10) == -9
    ranks.exited(Exited(gone.pid, 0))
    assert not ranks.any
