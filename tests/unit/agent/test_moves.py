"""Queue pairs of programs of others follow the plan: who is asked what, and which lines go to the process."""

import asyncio

import pytest

from c4bench.agent import moves
from c4bench.agent.moves import PlannedQps
from c4bench.attach.launchers import Identity
from c4bench.attach.server import AttachedProcess, Moved, PathQuestion
from c4bench.errors import UnhealthyError
from c4bench.verbs.addressing import label_for

OLD, NEW = 50_000, 50_001


class Scene:
    """A process with queue pairs 17 and 18 on port `OLD`, and a master that answers by `answers`."""

    def __init__(self):
        self.asked, self.sent, self.answers = [], [], asyncio.Queue()
        self.listens = True
        self.planned = PlannedQps(AttachedProcess(7, 0, Identity("j")), self._ask, self._send)

    async def _ask(self, request):
        self.asked.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send(self, line):
        self.sent.append(line)
        return self.listens

    async def next(self):
        """The request that comes next."""
        known = len(self.asked)
        while len(self.asked) == known:
            await asyncio.sleep(0)
        return self.asked[-1]


@pytest.fixture
def play(monkeypatch):
    """Run a coroutine of the scene while queue pairs are followed."""
    monkeypatch.setattr(moves, "_SETTLED_S", 0.0)
    monkeypatch.setattr(moves, "_AGAIN_S", 0.0)

    async def run(part):
        scene = Scene()
        for qp in (17, 18):
            scene.planned.add(PathQuestion("10.0.0.1", "10.1.0.1", qp, device=1), label_for(OLD))
        following = asyncio.create_task(scene.planned.follow())
        try:
            await part(scene)
        finally:
            following.cancel()

    return lambda part: asyncio.run(asyncio.wait_for(run(part), 10))


def test_a_queue_pair_is_moved_when_the_plan_changes(play):
    """The process gets the new port's label; then the master is asked with the ports as they are now."""

    async def part(scene):
        first = await scene.next()
        assert [(path.pid, path.qp) for path in first.paths] == [(7, 17), (7, 18)]
        assert (first.ports, first.refused, first.gone) == ((OLD, OLD), (), ())
        scene.answers.put_nowait({1: NEW})
        assert (await scene.next()).ports == (OLD, NEW)
        assert scene.sent == [{"move": 18, "device": 1, "label": label_for(NEW)}]

    play(part)


@pytest.mark.parametrize("listens", [True, False])
def test_a_queue_pair_that_cannot_move_is_said_to_stay(play, listens):
    """By the process, or because it does not read what is sent: the port is the old one, and the master hears why."""

    async def part(scene):
        await scene.next()
        scene.listens = listens
        scene.answers.put_nowait({1: NEW})
        if listens:
            await scene.next()
            scene.planned.moved(Moved(18, 1, label_for(OLD), refused=1))
        stays = await scene.next()
        assert (stays.ports, stays.refused) == ((OLD, OLD), (1,))

    play(part)


def test_a_move_that_a_newer_wish_has_overtaken_is_no_refusal(play):
    """What the process reports of the older one leaves the newer one wanted."""

    async def part(scene):
        for port in (NEW, NEW + 1):
            await scene.next()
            scene.answers.put_nowait({0: port})
        await scene.next()
        scene.planned.moved(Moved(17, 1, label_for(NEW)))
        scene.planned.moved(Moved(17, 1, 1 << 60))  # no label
        scene.planned.add(PathQuestion("10.0.0.1", "10.1.0.1", 19, device=1), label_for(OLD))
        newest = await scene.next()
        assert (newest.ports, newest.refused) == ((NEW + 1, OLD, OLD), ())

    play(part)


def test_a_queue_pair_that_did_not_wait_for_its_path_moves_there(play):
    """The master hears that it goes its own way; one that cannot move stays there, and the master hears that too.

    A number that has got a path since is another queue pair's.
    """

    async def part(scene):
        for qp in (19, 18):
            scene.planned.add(PathQuestion("10.0.0.1", "10.1.0.1", qp, device=1), 0)
        assert (await scene.next()).ports == (OLD, OLD, 0)
        scene.answers.put_nowait({2: NEW})
        assert (await scene.next()).ports == (OLD, OLD, NEW)
        assert scene.sent == [{"move": 19, "device": 1, "label": label_for(NEW)}]
        scene.planned.moved(Moved(19, 1, 3, refused=1))
        stays = await scene.next()
        assert (stays.ports, stays.refused) == ((OLD, OLD, 0), (2,))

    play(part)


def test_a_queue_pair_that_is_gone_is_given_back(play):
    """The master learns of it once, and it is not moved any more; a stranger's number stands for nothing."""

    async def part(scene):
        await scene.next()
        for said in (Moved(17, 1, 0), Moved(17, 2, 0), Moved(4711, 1, 0)):
            scene.planned.moved(said)
        after = await scene.next()
        assert ([path.qp for path in after.gone], [path.qp for path in after.paths]) == ([17], [18])
        scene.answers.put_nowait({})
        assert (await scene.next()).gone == ()

    play(part)


def test_a_master_that_does_not_know_is_asked_again(play):
    """As one that has restarted, and that agents have not told yet what is attached."""

    async def part(scene):
        first = await scene.next()
        scene.answers.put_nowait(UnhealthyError("who?"))
        assert await scene.next() == first
        assert scene.sent == []

    play(part)
