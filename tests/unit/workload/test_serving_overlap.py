"""A prompt's keys and values are on their way while the rest of it is prefilled."""

import time
from types import SimpleNamespace

import msgspec
from world import World, run_in_threads

from c4bench.collective.communicator import Communicator
from c4bench.cost.transformer import Accelerator
from c4bench.model.fabric import Nic
from c4bench.workload import serving
from c4bench.workload.controls import Controls
from c4bench.workload.pretraining import Scale
from c4bench.workload.serving import Serving

PIECES = 8


class Context:
    """What the program gets, with the ranks of a world; `told` is what it has reported, by kind."""

    def __init__(self, world, rank, parameters):
        self.rank, self.size, self.told = rank, world.size, {}
        nics = [Nic(member.host, 0, "rxe0", "net", "::1", world.rates[0]) for member in world.members]
        self.job = SimpleNamespace(members=world.members, nics=nics, seed=1)
        self.controls = Controls.create(world.folder / f"controls{rank}")
        self._world, self._parameters = world, parameters

    def parameters(self, kind):
        return msgspec.convert(msgspec.to_builtins(self._parameters), kind)

    def communicator(self, _name, _options):
        return self._world.comms[self.rank]

    def report(self, kind, **fields):
        self.told[kind] = fields


def test_keys_and_values_are_sent_while_the_prompt_is_prefilled(tmp_path, monkeypatch):
    """All but the last piece have come, and are right, before the prompt has its first token."""
    came_s, receive = [], Communicator.recv

    def receive_and_note(comm, array, source):
        receive(comm, array, source)
        came_s.append(time.time())

    monkeypatch.setattr(Communicator, "recv", receive_and_note)
    # A slow accelerator: a piece takes much longer to compute than to send.
    slow = Accelerator(efficiency=0.001)
    parameters = Serving(
        "llama-7b", 1, 1.0, prompt=16, answer=1, pieces=PIECES, accelerator=slow, scale=Scale(time=1.0)
    )
    world = World(tmp_path, 2)
    prefilling, decoding = contexts = [Context(world, rank, parameters) for rank in range(2)]
    for ended in run_in_threads(serving.run, contexts):
        ended.result()
    ((_, first_token_s),) = prefilling.told["served"]["times"]
    assert sum(moment_s < first_token_s for moment_s in came_s) == PIECES - 1 == len(came_s) - 1
    assert decoding.told["served"]["exact"]
