"""The ranks that an agent keeps for its host."""

import os
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


def test_a_rank_has_ended_once_its_exit_code_is_known(tmp_path):
    """No window says that a rank has ended without its exit code, from which C4D tells a failure from a normal end."""
    ranks = Ranks(AgentConfig("h0", "10.0.0.1", str(tmp_path), rings=str(tmp_path)))
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    ranks.started(Started("job", 0, child))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    zombie = ranks.window(0.0, 0.1).ranks[0]
    os.waitpid(child, 0)
    gone = ranks.window(0.1, 0.2).ranks[0]
    ranks.exited(Exited(child, 0))
    ended = ranks.window(0.2, 0.3).ranks[0]
    assert [(rank.state, rank.exit_code) for rank in (zombie, gone, ended)] == [
        ("running", None),
        ("running", None),
        ("exited", 0),
    ]
