"""A prompt's keys and values are on their way while the rest of it is prefilled."""

import threading
from types import SimpleNamespace

import msgspec
from world import World, run_in_threads

from c4bench.collective.communicator import Communicator
from c4bench.model.fabric import Nic
from c4bench.workload import serving
from c4bench.workload.serving import Serving

PIECES = 8


class Context:
    """What the program gets, with the ranks of a world; `told` is what it has reported, by kind."""

    def __init__(self, world, rank, parameters):
        self.rank, self.size, self.told = rank, world.size, {}
        nics = [Nic(member.host, 0, "rxe0", "net", "::1", world.rates[0]) for member in world.members]
        self.job = SimpleNamespace(members=world.members, nics=nics, seed=1)
        self.controls = SimpleNamespace(compute=lambda _seconds: None)
        self._world, self._parameters = world, parameters

    def parameters(self, kind):
        return msgspec.convert(msgspec.to_builtins(self._parameters), kind)

    def communicator(self, _name, _options):
        return self._world.comms[self.rank]

    def report(self, kind, **fields):
        self.told[kind] = fields


def test_keys_and_values_are_sent_while_the_prompt_is_prefilled(tmp_path, monkeypatch):
    """A piece comes, and is right, while those after it are prefilled: no piece is computed before the last came."""
    came, receive = threading.Semaphore(1), Communicator.recv

    def receive_and_count(comm, array, source):
        receive(comm, array, source)
        came.release()

    monkeypatch.setattr(Communicator, "recv", receive_and_count)
    parameters = Serving("llama-7b", 1, 1.0, prompt=16, answer=1, pieces=PIECES)
    world = World(tmp_path, 2)
    prefilling, decoding = contexts = [Context(world, rank, parameters) for rank in range(2)]
    missing = []
    prefilling.controls.compute = lambda _seconds: came.acquire(timeout=5) or missing.append("a piece")
    for ended in run_in_threads(serving.run, contexts):
        ended.result()
    assert not missing
    assert came.acquire(blocking=False), "the last piece has not come"
    assert not came.acquire(blocking=False)
    assert decoding.told["served"]["exact"]
