"""An agent logs its connection to the master, and the starts and ends of its ranks."""

import asyncio
import contextlib
import socket
import ssl

import pytest

from c4bench.agent import agent as module
from c4bench.agent.agent import Agent
from c4bench.agent.ranks import Ranks
from c4bench.agent.spawner import Exited, Started
from c4bench.model.agent import AgentConfig
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import JobSpec, StartRanks


def said(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_unreachable_master_is_logged_once(tmp_path, caplog, monkeypatch):
    """The first failed connection is logged as a warning with address and reason; equal failures are not."""
    monkeypatch.setattr(module, "_RECONNECT_S", 0.01)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = AgentConfig("h0", "127.0.0.1", str(tmp_path), (), free.getsockname()[1], state=str(tmp_path))
        tried = []
        counted = lambda *args, **given: tried.append(1) or master_channel(*args, **given)  # noqa: E731
        monkeypatch.setattr(module, "master_channel", counted)
        caplog.set_level("INFO", "c4bench")
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(Agent(config, ssl.create_default_context(), free)._keep_connected(), 0.5))
    ((level, message),) = said(caplog)
    assert level == "WARNING"
    assert f"no connection to the master 127.0.0.1:{config.port}: " in message
    assert "Connect call failed" in message
    assert len(tried) > 3


@pytest.mark.parametrize(("job", "level"), [("train~1", "INFO"), ("check~1", "DEBUG")])
def test_starts_and_ends_of_ranks_are_logged(tmp_path, caplog, job, level):
    """Ranks of the master's own checks are logged at DEBUG, and a non-zero exit code is always a warning."""
    caplog.set_level("DEBUG", "c4bench")
    ranks = Ranks(AgentConfig("h0", "10.0.0.1", str(tmp_path), rings=str(tmp_path)))
    ranks.admit(StartRanks(JobSpec(job, "p", (), ()), (0, 1)))
    for rank in (0, 1):
        ranks.started(Started(job, rank, 2**22 + rank))
        ranks.exited(Exited(2**22 + rank, -9 * rank))
    ranks.stop(job)
    ranks.stop(job)
    assert said(caplog) == [
        (level, f"{job}: rank 0 runs as process {2**22}"),
        (level, f"{job}: rank 0 ended with code 0"),
        (level, f"{job}: rank 1 runs as process {2**22 + 1}"),
        ("WARNING", f"{job}: rank 1 ended with code -9"),
        (level, f"{job} stopped on this host: 2 ranks"),
    ]
