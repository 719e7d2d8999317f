"""Calls and notes between two peers, over a real stream; and who is let in over TLS."""

import asyncio
import contextlib
import datetime
import select
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.wire import peer as peer_module
from c4bench.wire.channel import StreamChannel
from c4bench.wire.framing import frame
from c4bench.wire.messages import Answer, Call, ChooseQps, Empty, Exchange
from c4bench.wire.peer import Handler, Peer, Receiver
from c4bench.wire.rank import RankLink
from c4bench.wire.trust import Role, client_context, peer_identity, server_context


class Question(msgspec.Struct):
    number: int


async def double(question):
    """A method that can refuse."""
    if question.number < 0:
        raise UnhealthyError("no negative numbers")
    return Question(2 * question.number)


@contextlib.asynccontextmanager
async def pair(handlers):
    """Two peers on the two ends of a socket pair; the second one answers."""
    ends = socket.socketpair()
    peers = []
    for end, own in zip(ends, ({}, handlers), strict=True):
        peers.append(Peer(StreamChannel(*await asyncio.open_connection(sock=end)), own))
    serving = [asyncio.create_task(peer.serve()) for peer in peers]
    try:
        yield peers
    finally:
        for peer in peers:
            await peer.close()
        await asyncio.gather(*serving)


def test_notes_of_a_receiver_come_in_order_and_one_that_fails_is_reported():
    """Each note is taken as it comes in, also after one that could not be taken; nobody can call such a method."""
    taken, reported = [], []

    def take(body):
        taken.append(10 // msgspec.msgpack.decode(body))

    async def scene():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        async with pair({"share": Receiver(take)}) as (sender, _):
            for number in (1, 0, 5, 2):
                await sender.note("share", number)
            with pytest.raises(UnhealthyError, match="no method 'share' here"):
                await sender.call("share", 1, Empty)

    asyncio.run(scene())
    assert taken == [10, 2, 5]
    assert len(reported) == 1
    assert "share failed with ZeroDivisionError" in reported[0]


def test_calls_are_answered_each_with_its_own_answer():
    """Many calls in flight at once are told apart."""

    async def scene():
        async with pair({"double": Handler(Question, double)}) as (asker, _):
            answers = await asyncio.gather(*(asker.call("double", Question(n), Question) for n in range(50)))
            return [answer.number for answer in answers]

    assert asyncio.run(scene()) == [2 * n for n in range(50)]


@pytest.mark.parametrize(
    ("method", "body", "words"),
    [("double", Question(-1), "no negative"), ("halve", Question(1), "no method"), ("double", Empty(), "number")],
)
def test_a_refusal_arrives_in_words(method, body, words):
    """A handler's error, an unknown method and a body of another shape are errors at the asker, in words."""

    async def scene():
        async with pair({"double": Handler(Question, double)}) as (asker, _):
            await asker.call(method, body, Question)

    with pytest.raises(UnhealthyError, match=words):
        asyncio.run(scene())


def test_a_call_fails_when_the_other_side_goes():
    """Nobody waits for an answer that cannot come."""

    async def scene():
        async def never(_):
            await asyncio.Event().wait()

        async with pair({"never": Handler(Empty, never)}) as (asker, answerer):
            call = asyncio.create_task(asker.call("never", Empty(), Empty))
            await asyncio.sleep(0.05)
            await answerer.close()
            await call

    with pytest.raises(UnhealthyError, match="closed"):
        asyncio.run(scene())


@pytest.mark.parametrize("abandons", [True, False])
def test_a_call_that_is_abandoned_is_no_longer_answered(abandons):
    """The peer's method is cancelled with the caller's, if the caller says so; other calls are answered as ever."""

    async def scene():
        cancelled = []

        async def never(_):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                cancelled.append(error.args)
                raise

        async with pair({"never": Handler(msgspec.Raw, never), "double": Handler(Question, double)}) as (asker, _):
            call = asyncio.create_task(asker.call_raw("never", peer_module.encode(Empty()), abandons=abandons))
            await asyncio.sleep(0.05)
            call.cancel()
            assert (await asker.call("double", Question(1), Question)).number == 2
            await asker.call("double", Question(1), Question)
            return list(cancelled)

    assert asyncio.run(scene()) == [(peer_module.ABANDONED,)] * abandons


def test_noise_is_counted_and_does_not_end_the_conversation():
    """Bytes that are no message are dropped and counted; the next call is answered."""

    async def scene():
        ends = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ends[0])
        peer = Peer(StreamChannel(*await asyncio.open_connection(sock=ends[1])), {"double": Handler(Question, double)})
        serving = asyncio.create_task(peer.serve())
        writer.write(frame(b"\xc1 noise"))
        writer.write(frame(msgspec.msgpack.encode(Call(1, "double", msgspec.Raw(msgspec.msgpack.encode(Question(4)))))))
        length = int.from_bytes(await reader.readexactly(4))
        answer = msgspec.msgpack.decode(await reader.readexactly(length), type=Answer)
        writer.close()
        await serving
        await peer.close()
        return peer.refused, msgspec.msgpack.decode(answer.body, type=Question).number

    assert asyncio.run(scene()) == (1, 8)


def test_a_bug_in_a_method_is_answered_too():
    """A method that fails in an unforeseen way answers with that, and the event loop's handler hears of it."""

    async def broken(_question):
        raise ProcessLookupError(3, "No such process")

    async def scene():
        heard = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context["exception"]))
        async with pair({"stop": Handler(Question, broken)}) as (asking, _):
            with pytest.raises(UnhealthyError, match="stop failed with ProcessLookupError"):
                await asyncio.wait_for(asking.call("stop", Question(1), Question), 5)
        return heard

    assert [type(error) for error in asyncio.run(scene())] == [ProcessLookupError]


def pairs(count):
    return ChooseQps("j", (("a/0", "b/0"),) * count)


def test_a_rank_asks_through_its_link(tmp_path):
    """The blocking link of a rank and the agent's asynchronous peer understand each other."""
    path, ready, done = str(tmp_path / "agent.sock"), threading.Event(), threading.Event()

    async def agent():
        async def choose(request):
            if not request.pairs:
                raise UnhealthyError("no pairs")
            return 2 * len(request.pairs)

        async def serve(reader, writer):
            await Peer(StreamChannel(reader, writer), {"qps": Handler(ChooseQps, choose)}).serve()
            writer.close()

        async with await asyncio.start_unix_server(serve, path):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(agent()))
    thread.start()
    assert ready.wait(5)
    link = RankLink(path)
    try:
        assert link.call(pairs(21)) == 42
        with pytest.raises(UnhealthyError, match="no pairs"):
            link.call(pairs(0))
        with pytest.raises(UnhealthyError, match="no method 'exchange'"):
            link.call(Exchange("j", "c", "k", 0, 1, b"", 1.0))
    finally:
        link.close()
        done.set()
        thread.join()


def test_threads_of_a_rank_call_one_after_the_other(tmp_path):
    """A second thread's call waits for the answer to the first, which would else be taken for its own."""
    early = []

    def agent(listener):
        connection, _ = listener.accept()
        with connection:
            for _ in range(4):
                length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
                call = msgspec.msgpack.decode(connection.recv(length, socket.MSG_WAITALL), type=Call)
                early.extend(select.select([connection], [], [], 0.05)[0])
                doubled = 2 * len(msgspec.msgpack.decode(call.body, type=ChooseQps).pairs)
                answer = Answer(call.id, msgspec.Raw(msgspec.msgpack.encode(doubled)))
                connection.sendall(frame(msgspec.msgpack.encode(answer)))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        answering = threading.Thread(target=agent, args=(listener,))
        answering.start()
        link = RankLink(str(tmp_path / "agent.sock"))
        with ThreadPoolExecutor(4) as threads:
            answers = threads.map(lambda number: link.call(pairs(number)), range(4))
            assert list(answers) == [0, 2, 4, 6]
        answering.join()
        link.close()
    assert early == []


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Two authorities that do not know each other, each with a host h0."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    places = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    for place in places:
        authority.establish(place, ["h0"], now)
    return places


def handshake(server, client):
    """The client's name as the server sees it after a TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="master")
    for _ in range(4):
        for end in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return peer_identity(ours, Role.AGENT).name


def test_a_stranger_is_not_let_in(authorities):
    """A certificate of another authority fails the handshake; our own is known by its name."""
    ours, theirs = authorities
    server = server_context(ours / "ca.pem", ours / "master.pem", ours / "master.key")
    known = client_context(ours / "ca.pem", ours / "h0.pem", ours / "h0.key")
    stranger = client_context(ours / "ca.pem", theirs / "h0.pem", theirs / "h0.key")
    assert handshake(server, known) == "h0"
    with pytest.raises(ssl.SSLError):
        handshake(server, stranger)


def test_an_agent_speaks_to_the_master_only(authorities):
    """A host with a good certificate cannot pose as the master."""
    ours, _ = authorities
    impostor = server_context(ours / "ca.pem", ours / "h0.pem", ours / "h0.key")
    agent = client_context(ours / "ca.pem", ours / "h0.pem", ours / "h0.key")
    with pytest.raises(ssl.SSLError, match=r"unsuitable certificate purpose|Hostname mismatch"):
        handshake(impostor, agent)


@pytest.mark.parametrize(
    "data", [b"\x91" * 100_000, b"\x81\xa1a" * 50_000, b"\xdb\x00\x00\x00\x04\xff\xfe\xfd\xfc", b"\xc1"]
)
def test_a_message_that_cannot_be_read_is_counted_and_the_line_stays(data):
    """Deep nesting, invalid text and noise are refused; the next call is answered."""

    async def talk():
        async with pair({"echo": Handler(Empty, answer_empty)}) as (here, there):
            await here._channel.send(data)
            await here.call("echo", Empty(), Empty)
            return there.refused

    assert asyncio.run(talk()) == 1


async def answer_empty(_):
    return Empty()


def test_calls_beyond_the_limit_are_refused_and_counted(monkeypatch):
    """A peer that asks more at once than is handled gets an answer that says so; the others are answered."""
    monkeypatch.setattr(peer_module, "CALLS_AT_MOST", 2)

    async def scene():
        go = asyncio.Event()

        async def wait(question):
            await go.wait()
            return question

        async with pair({"wait": Handler(Question, wait)}) as (asker, answerer):
            calls = [asyncio.create_task(asker.call("wait", Question(number), Question)) for number in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(UnhealthyError, match="2 calls of this connection are under way; wait for their"):
                await asker.call("wait", Question(2), Question)
            await asker.note("wait", Question(3))
            await asyncio.sleep(0.05)
            go.set()
            answers = [answer.number for answer in await asyncio.gather(*calls)]
            answers.append((await asker.call("wait", Question(4), Question)).number)
            return answers, answerer.refused

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == ([0, 1, 4], 2)
