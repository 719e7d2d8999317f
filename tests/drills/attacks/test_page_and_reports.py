"""Attacks on the live page's requests, and on reports by what a run recorded: one line in answer, and only text."""

import asyncio
import html
import logging
import random
import re
import socket
import types

import pytest
from page_scene import PageScene

from c4bench.cli.nightly import _page
from c4bench.foreign_text import markdown
from c4bench.live import server
from c4bench.live.feed import FaultHistory
from c4bench.model.measurement import Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.provenance import collect
from c4bench.report import evaluate_run, render
from c4bench.report.compare import compare
from c4bench.report.markdown import comparison, summary
from c4bench.report.nights import Comparison

INPUTS = 3_000
TARGETS = [
    "//[",
    "//]",
    "//[::1",
    "//[v1.]@:/",
    "/\\",
    "/#",
    "/|",
    "/<a>",
    "/\x7f",
    "/\x00",
    "/é",
    "//h:99999999999999999999",
]
TOLD = {"400", "401", "404"}
IMAGE = "![x](https://evil.example/p.png)"
EVIL = [
    IMAGE,
    "[click](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "`` ` ``" + IMAGE,
    "a | b | " + IMAGE,
    "www.evil.example and https://evil.example",
    "\x1b]8;;https://evil.example\x07x\x1b]8;;\x07",
    "\u202egnp.exe",
    "# title",
    "line\n\n## Passed\n\n" + IMAGE,
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A page of two hosts."""
    made = PageScene(tmp_path_factory.mktemp("page"), hosts=2, per_leaf=1, faults=())
    yield made
    made.stop()


def answer(scene, request):
    """Everything that the page sends back for these bytes."""
    port = int(scene.address.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as bare,
        scene.tls().wrap_socket(bare, server_hostname="localhost") as line,
    ):
        line.sendall(request)
        return line.makefile("rb").read()


def refused_in_one_line(scene, request, caplog):
    """Whether these bytes get a status of TOLD and one line of text, and no traceback is logged."""
    head, _, body = answer(scene, request).partition(b"\r\n\r\n")
    status = head.split()[1].decode() if head else "no answer"
    traced = [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    return status in TOLD and body.count(b"\n") == 1 and not traced


@pytest.mark.attack("a request target that is no URL")
@pytest.mark.parametrize("target", TARGETS)
def test_a_request_target_that_is_none(scene, caplog, target):
    """A target with brackets or other characters that no path has is refused in one line, without a traceback."""
    request = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode()
    assert refused_in_one_line(scene, request, caplog)
    assert scene.request("/")[0] == 200


@pytest.mark.attack("variant: a query, a cookie and a form that cannot be decoded")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /nothing?job=%ff%00%5b HTTP/1.1\r\n\r\n",
        b"GET /nothing?" + b"&" * 4000 + b" HTTP/1.1\r\n\r\n",
        b"GET /nothing?" + b"a=1&" * 40 + b" HTTP/1.1\r\n\r\n",
        b'GET /nothing HTTP/1.1\r\nCookie: __Host-c4bench="\\377\\000\\033[2J"; \xff=\xfe\r\n\r\n',
        b"GET /nothing HTTP/1.1\r\n: x\r\n\xff\xff\r\n\r\n",
        b"POST /nothing HTTP/1.1\r\nContent-Length: 3\r\n\r\n\xed\xa0\x80",
        b"POST /nothing HTTP/1.1\r\nContent-Length: 160\r\n\r\n" + b"a=1&" * 40,
    ],
)
def test_a_request_that_cannot_be_decoded(scene, caplog, request_bytes):
    """Bytes that are no text, and more fields than a form has, are refused in one line or mean nothing."""
    assert refused_in_one_line(scene, request_bytes, caplog)


@pytest.mark.attack("variant: requests by chance")
def test_requests_by_chance():
    """Whatever bytes come, a request is read, or refused as one; nothing else is raised."""
    chance = random.Random(1)
    parts = [b"POST ", b"/", b"//[", b"?", b"a=%ff", b" HTTP/1.1", b"\r\n", b"Cookie: ", b";", b'="', b"\x00"]
    parts.append(b"Content-Length: 2")
    for _ in range(INPUTS):
        words = (chance.choice(parts) if chance.random() < 0.9 else chance.randbytes(2) for _ in range(12))
        asyncio.run(read(b"GET /" + b"".join(words) + b"\r\n\r\n"))


async def read(request):
    reader = asyncio.StreamReader(limit=server.HEAD_AT_MOST)
    reader.feed_data(request)
    reader.feed_eof()
    try:
        await server.read_request(reader)
    except server.BadRequestError:
        return


@pytest.mark.attack("variant: a history of faults that no page can show")
def test_a_history_that_cannot_be_shown(tmp_path):
    """Deep nesting, numbers without end, times of no calendar and a line of 3 MiB bring no entry and no traceback."""
    lines = [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"kind":"fault_applied","time_s":' + b"9" * 400 + b"}",
        b'{"kind":"fault_applied","time_s":1e300}',
        b'{"kind":"fault_applied","time_s":NaN}',
        b'{"kind":"fault_applied","time_s":true}' * 80_000,
        b"\xff\xfe",
        b'{"kind":"fault_applied","time_s":1,"fault":"nic.rate","target":"h1"}',
    ]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    history = FaultHistory(tmp_path / "events.jsonl")
    found = [entry for _ in range(10) for entry in history.poll()]
    assert [(entry.time_s, entry.subject) for entry in found] == [(1.0, "h1")]


def recorded(folder, text):
    """A run in which everything that can be named has this text in its name."""
    run = RunDirectory.create(folder, "main")
    command = ["pytest", "--hosts", "softroce", text]
    run.write_provenance(
        collect(name="main", started_at="", command=command, seed=7, backend=text, topology=text, clock="virtual")
    )
    ledger = Ledger(run, text)
    ledger.measure(text, 2.0, text, at_most=1.0, case=text)
    run.finish_scenario(text, Outcome.FAIL, text)
    run.finish_scenario(f"other {text}", Outcome.SKIP, text)
    run.event(0.0, "ended", scenario=text, node=f"tests/{text}.py::test_x")
    return run


def live_markdown(text):
    """What of this Markdown is more than text: marks outside code spans, addresses, and what does not print."""
    kept = [char for char in text if not char.isprintable() and char != "\n"]
    shown = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"\\.", "", text))
    return kept + [word for word in ("![", "](", "<img", "www.", "://", "\n## Passed", "`") if word in shown]


@pytest.mark.attack("Markdown of a run")
@pytest.mark.parametrize("text", EVIL)
def test_markdown_of_a_run_is_text(tmp_path, text):
    """Names and errors of a run in the summary, the comparison and the night's page begin no image, link or HTML."""
    run = recorded(tmp_path, text)
    verdict = evaluate_run(run.path)
    night = _page(run.path, 1, verdict, Comparison("n", 3, 1, (), (text,), (text,), (text,)), markdown)
    empty = types.SimpleNamespace(measurements=(), timings=(), scenarios=(), problems=())
    differing = comparison((text, text), compare(empty, verdict))
    for page in (summary(run, verdict), night, differing):
        assert live_markdown(page) == []


@pytest.mark.attack("variant: a page of a run")
@pytest.mark.parametrize("text", EVIL)
def test_a_page_of_a_run_is_text(tmp_path, text):
    """The report's HTML shows what a run recorded as text: no element, and no character that a reader cannot see."""
    page = render(recorded(tmp_path, text).path).read_text()
    assert "<img" not in page
    assert not [char for char in page if not char.isprintable() and char not in "\n\t"]
    assert html.escape(text.splitlines()[0][:4]) in page or not text.isprintable()
