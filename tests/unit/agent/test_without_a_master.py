"""What an agent answers its ranks while it has no master."""

import asyncio
import socket
import ssl

from c4bench.agent.agent import Agent
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import USUAL_QPS, Flow
from c4bench.wire.rank import RankLink
from c4bench.workload.agent_rendezvous import AgentRendezvous

PAIR = "h0/0", "h1/0"


def test_a_rank_connects_without_c4p(tmp_path, capsys):
    """Questions about the number of QPs and their paths are refused at once: the usual number, on ECMP."""

    def connect(path):
        link = RankLink(path)
        rendezvous = AgentRendezvous(link, "j", path)
        answers = rendezvous.choose_qps([PAIR]), rendezvous.route([Flow("j/j:data/0>1/0.0", "j", *PAIR, 1e10)])
        link.close()
        return answers

    async def play(config, spawner):
        serving = asyncio.create_task(Agent(config, ssl.create_default_context(), spawner).run())
        while not (tmp_path / "agent.sock").exists():
            await asyncio.sleep(0.01)
        answers = await asyncio.wait_for(asyncio.to_thread(connect, config.socket), 5)
        serving.cancel()
        return answers

    spawner, far_end = socket.socketpair()
    with socket.socket() as free, spawner, far_end:
        free.bind(("127.0.0.1", 0))
        config = AgentConfig("h0", "127.0.0.1", str(tmp_path), (), free.getsockname()[1], state=str(tmp_path))
        assert asyncio.run(asyncio.wait_for(play(config, spawner), 20)) == (USUAL_QPS, [0])
    assert "qps: the agent has lost its master" in capsys.readouterr().err
