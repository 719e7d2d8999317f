"""The live page's server: who is let in, what it sends, and that nothing else is to be had from it."""

import contextlib
import json
import socket
import ssl
import threading
import urllib.error
import urllib.parse
from http.client import IncompleteRead
from itertools import islice

import pytest
from page_scene import PageScene

from c4bench.live.server import _FILES
from c4bench.model.event import HostReturned

COOKIE = "__Host-c4bench"


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A page with a job in which a NIC became slow."""
    made = PageScene(tmp_path_factory.mktemp("page"))
    made.advance(8.0)
    yield made
    made.stop()


def signed_in(scene, token):
    """The cookie that a token gives."""
    status, headers, _ = scene.request("/sign-in", data=urllib.parse.urlencode({"token": token}).encode())
    assert (status, headers["Location"]) == (303, "/")
    return headers["Set-Cookie"].partition(";")[0]


@pytest.mark.parametrize("path", ["/stream", "/index.html", "/main.js", "/job.js", "/nothing", "/../server.py"])
def test_a_stranger_gets_nothing(scene, path):
    """Without a certificate or a token nothing is sent but the sign-in form and its style."""
    status, _, body = scene.request(path)
    assert (status, "sign in" in body) == (401, True)


def test_a_stranger_gets_the_form(scene):
    """The address itself shows the sign-in form, and says nothing about the fabric."""
    status, _, body = scene.request("/")
    assert status == 200
    assert 'action="/sign-in"' in body
    assert "main.js" not in body


@pytest.mark.parametrize(("who", "expected"), [("operator", 200), ("observer", 200), ("h0", 401)])
def test_certificates_of_people_admit(scene, who, expected):
    """An operator's and an observer's certificate open the page; an agent's does not."""
    assert scene.request("/main.js", who=who)[0] == expected


def test_a_certificate_of_another_authority_is_refused(scene, tmp_path):
    """TLS ends with a peer whose certificate another authority has signed."""
    other = PageScene(tmp_path, hosts=2, per_leaf=1)
    try:
        context = ssl.create_default_context(cafile=scene.certificate)
        context.load_cert_chain(other.folder / "trust/operator.pem", other.folder / "trust/operator.key")
        port = int(scene.address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as bare,
            context.wrap_socket(bare, server_hostname="localhost") as line,
            contextlib.suppress(ssl.SSLError, ConnectionError),
        ):
            line.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert line.recv(1) == b""
    finally:
        other.stop()


def test_a_token_admits_until_it_is_revoked(scene):
    """A token opens the page by way of a cookie that only this origin gets, over TLS, and no script reads."""
    token = scene.token("visitor")
    _, headers, _ = scene.request("/sign-in", data=f"token={token}".encode())
    assert headers["Set-Cookie"] == f"{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict"
    cookie = signed_in(scene, token)
    assert scene.request("/main.js", cookie=cookie)[0] == 200
    scene.tokens.revoke("visitor", scene.real_s())
    assert scene.request("/main.js", cookie=cookie)[0] == 401


def test_a_wrong_token_is_sent_back_to_the_form(scene):
    """A token that nobody made gives no cookie."""
    status, headers, _ = scene.request("/sign-in", data=b"token=" + b"x" * 43)
    assert (status, headers["Location"], headers["Set-Cookie"]) == (303, "/#refused", None)


def test_revoking_a_token_ends_its_streams(scene):
    """Who looks on with a token that is revoked receives no further message."""
    cookie = signed_in(scene, scene.token("leaver"))
    with scene.stream(cookie=cookie) as messages:
        assert next(messages)[0] == "timeline"
        scene.tokens.revoke("leaver", scene.real_s())
        with contextlib.suppress(IncompleteRead):
            assert len(list(islice(messages, 9))) <= 3


def test_the_stream_has_what_the_master_knows(scene):
    """Hosts, the job, loaded links, the delay matrix and the finding about the slow NIC are in the stream."""
    with scene.stream(who="observer") as messages:
        found = dict([next(messages), next(messages), next(messages)])
    assert [host["host"] for host in found["fleet"]["hosts"]] == [f"h{n}" for n in range(8)]
    assert all(0.0 <= host["lag_s"] < 1.0 and host["ranks"] == 1 for host in found["fleet"]["hosts"])
    (job,) = found["fleet"]["jobs"]
    assert (job["name"], job["ranks"], job["diagnoses"]) == ("train", 8, 1)
    loads = {link["link"]: link["offered_bps"] for link in found["fleet"]["links"]}
    assert all(loads[f"out:h{n}/0"] == 10e9 for n in range(8))
    finding = next(entry for entry in found["timeline"] if entry["kind"] == "finding")
    assert finding["subject"] == "nic h3/0 (tx)"
    rows = found["job"]["cells"][::3]
    assert found["job"]["nics"] == [f"h{n}/0" for n in range(8)]
    slowest = max(zip(found["job"]["cells"][2::3], rows, strict=True))
    assert found["job"]["nics"][slowest[1]] == "h3/0"
    assert len(found["job"]["steps_s"]) > 50


def test_new_events_come_at_once(scene):
    """An event that the master publishes is in the stream within the time between two polls, and a little."""
    with scene.stream(who="observer") as messages:
        next(messages)
        later = threading.Timer(0.3, lambda: scene.publish(HostReturned(scene.now_s(), "h7", 0.97)))
        later.start()
        entries = next(data for event, data in messages if event == "entries")
    assert [(entry["kind"], entry["subject"]) for entry in entries] == [("host", "h7")]


def test_every_response_forbids_foreign_content(scene):
    """Scripts, styles and connections are limited to this server, and no other page may show this one in a frame."""
    for path, who in (("/", None), ("/", "operator"), ("/main.js", "operator"), ("/stream?x", None)):
        headers = scene.request(path, who=who)[1]
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert set(policy.values()) <= {"'none'", "'self'"}
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


def test_files_refer_to_nothing_outside():
    """No file of the page names another server, has a script or a style inside it, or evaluates text."""
    assert len(_FILES) > 8
    for path in _FILES.values():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not [
            word for word in ("http:", "https:", "//cdn", " style=", "onclick", "eval(", "innerHTML") if word in text
        ], path
        assert "<script>" not in text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /sign-in HTTP/1.1\r\n\r\n", 405),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"POST /sign-in HTTP/1.1\r\n\r\n", 411),
        (b"POST /sign-in HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST /sign-in HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", 413),
        (b"POST /sign-in HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xfe", 400),
        (b"POST /sign-in HTTP/1.1\r\nContent-Length: 160\r\n\r\n" + b"a=1&" * 40, 400),
        (b"GET / HTTP/1.1\r\nCookie: " + b"x" * 20000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /main.js HTTP/1.1\r\nCookie: ]]==;;\x00\r\n\r\n", 401),
    ],
)
def test_hostile_requests_are_answered_in_one_line(scene, sent, status):
    """Malformed and oversized requests get an error, and the server goes on."""
    port = int(scene.address.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as bare,
        scene.tls().wrap_socket(bare, server_hostname="localhost") as line,
    ):
        line.sendall(sent)
        answer = line.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert scene.request("/")[0] == 200


def test_nothing_is_served_without_tls(scene):
    """A peer that does not speak TLS gets nothing."""
    port = int(scene.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in line.recv(100)


def test_a_history_of_faults_is_shown(tmp_path):
    """Faults that are appended to the history come into the stream, whole lines only, and other lines are left out."""
    history = tmp_path / "events.jsonl"
    scene = PageScene(tmp_path, hosts=2, per_leaf=1, history=history)
    try:
        with scene.stream(who="operator") as messages:
            assert next(messages) == ("timeline", [])
            applied = {
                "time_s": 5.0,
                "kind": "fault_applied",
                "fault": "nic.rate",
                "host": "h1",
                "target": "nic h1/0 (rx)",
            }
            other = {"time_s": 4.0, "kind": "test_ended", "passed": True}
            half = json.dumps({**applied, "kind": "fault_healed", "reason": "asked"})
            history.write_text(f"{json.dumps(other)}\nnot json\n{json.dumps(applied)}\n{half[:20]}")
            first = next(data for event, data in messages if event == "entries")
            with history.open("a") as file:
                file.write(half[20:] + "\n")
            second = next(data for event, data in messages if event == "entries")
    finally:
        scene.stop()
    assert [(entry["subject"], entry["text"]) for entry in first] == [("nic h1/0 (rx)", "nic.rate is in force")]
    assert [entry["text"] for entry in second] == ["nic.rate is healed: asked"]


def test_links_have_what_switches_counted(scene):
    """A link's row has its planned load and, once switches were read twice, the traffic that they counted."""
    scene.count({"out:h0/0": 4e9})
    with scene.stream(who="observer") as messages:
        rows = (row for event, data in messages if event == "fleet" for row in data["links"])
        found = next(row for row in rows if row["carried_bps"] is not None)
    assert (found["link"], found["offered_bps"]) == ("out:h0/0", 10e9)
    assert found["carried_bps"] == pytest.approx(4e9, rel=0.5)  # as exact as the machine is punctual
