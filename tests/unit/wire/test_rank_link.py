"""A rank's blocking link to its agent: calls, notes, refusals and the end of the agent."""

import socket
import threading

import msgspec
import pytest

from c4bench.errors import UnhealthyError
from c4bench.wire.framing import LENGTH_BYTES, frame
from c4bench.wire.messages import Answer, Call, Exchange, Exchanged, Message, Note, Watch
from c4bench.wire.rank import RankLink

encode = msgspec.msgpack.encode
WATCH = Watch("j", "c")


def exchange(comm="c"):
    return Exchange("j", comm, "k", 0, 1, b"", 1.0)


class FakeAgent:
    """The agent's end of one link, served on a thread by a function that gets it and may answer in pieces."""

    def __init__(self, path, serve):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.received = []
        self._thread = threading.Thread(target=self._run, args=(serve,), daemon=True)
        self._thread.start()

    def _run(self, serve):
        self._line, _ = self._listener.accept()
        with self._line:
            serve(self)

    def receive(self):
        """The next message."""
        length = int.from_bytes(self._line.recv(LENGTH_BYTES, socket.MSG_WAITALL))
        self.received.append(msgspec.msgpack.decode(self._line.recv(length, socket.MSG_WAITALL), type=Message))
        return self.received[-1]

    def answer(self, call, body, error="", piece=1 << 20):
        """Answer a call, in pieces of so many bytes."""
        data = frame(encode(Answer(call.id, msgspec.Raw(encode(body)), error)))
        for start in range(0, len(data), piece):
            self._line.sendall(data[start : start + piece])

    def close(self):
        """Wait until served."""
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def linked(tmp_path):
    """A link to an agent that serves as given; closed at the end."""
    made = []

    def link(serve):
        path = str(tmp_path / "a")
        agent = FakeAgent(path, serve)
        made.extend([RankLink(path), agent])
        return made[-2:]

    yield link
    for one in made:
        one.close()


def test_calls_are_numbered_and_answered_in_order(linked):
    """Each call has a number of its own; its answer comes back decoded, however small the pieces that arrive."""

    def serve(agent):
        for number in range(3):
            agent.answer(agent.receive(), Exchanged((b"%d" % number,)), piece=3)

    link, agent = linked(serve)
    answers = [link.call(exchange()).payloads for _ in range(3)]
    assert answers == [(b"0",), (b"1",), (b"2",)]
    assert [(call.id, call.method, bytes(call.body)) for call in agent.received] == [
        (number, "exchange", encode(exchange())) for number in (1, 2, 3)
    ]
    assert isinstance(agent.received[0], Call)


def test_a_refusal_is_the_masters_words(linked):
    """An error in the answer is raised with its text; the link stays, and a note needs no answer."""

    def serve(agent):
        agent.answer(agent.receive(), None, "job 'j' does not run")
        agent.receive()
        agent.answer(agent.receive(), Exchanged(missing=(4,)))

    link, agent = linked(serve)
    with pytest.raises(UnhealthyError, match=r"^job 'j' does not run$"):
        link.call(WATCH)
    link.note(WATCH)
    assert link.call(exchange()).missing == (4,)
    assert isinstance(agent.received[1], Note)
    assert (agent.received[1].method, bytes(agent.received[1].body)) == ("watch", encode(WATCH))


@pytest.mark.parametrize("sent", [0, 2, 6], ids=["nothing", "part of the length", "part of the answer"])
def test_an_agent_that_is_gone_is_an_error(linked, sent):
    """A connection that closes before or within an answer raises at once."""

    def serve(agent):
        call = agent.receive()
        agent._line.sendall(frame(encode(Answer(call.id)))[:sent])

    link, _ = linked(serve)
    with pytest.raises(UnhealthyError, match="the agent closed the connection"):
        link.call(WATCH)


def test_threads_of_a_rank_get_their_own_answers(linked):
    """Calls of several threads follow each other: each thread has the answer to what it asked."""

    def serve(agent):
        for _ in range(20):
            call = agent.receive()
            agent.answer(call, Exchanged((bytes(call.body),)))

    link, _ = linked(serve)
    wrong = []

    def ask(name):
        for _ in range(5):
            answer = link.call(exchange(name))
            if answer.payloads != (encode(exchange(name)),):
                wrong.append((name, answer))

    threads = [threading.Thread(target=ask, args=(f"c{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_link_is_readable_once_the_answer_is_there(linked):
    """A rank can wait for an answer with its other descriptors: `fileno` is the link's own."""
    go = threading.Event()

    def serve(agent):
        call = agent.receive()
        go.wait(10)
        agent.answer(call, Exchanged((b"x",)))

    link, _ = linked(serve)
    link.ask(WATCH)
    with socket.socket(fileno=socket.dup(link.fileno())) as own:
        own.settimeout(0.05)
        with pytest.raises(TimeoutError):
            own.recv(1, socket.MSG_PEEK)
        own.settimeout(10)
        go.set()
        assert own.recv(1, socket.MSG_PEEK)
    link._socket.settimeout(None)
    assert link.answer(Exchanged).payloads == (b"x",)
