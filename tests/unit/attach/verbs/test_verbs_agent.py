"""The preloaded library asks the agent for each new connection's path, and does without it where there is none."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from itertools import islice

ASKED = {"source": "10.0.1.5", "destination": "10.0.2.9", "qp": 17, "remote_qp": 99, "device": 1}
ANSWER_S, LATER_S = 0.5, 0.1


@contextmanager
def agent(folder, answer, hello=b"{}\n", messages=None, later=b""):
    """An agent that answers each question and each hello with these bytes; yields the messages that come to it.

    It hangs up after so many `messages`, and says something `later` than it has answered a question.
    """
    heard = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder.parent / "agent"))
        listener.listen()

        def serve():
            connection, _ = listener.accept()
            # A process that ends before it has read an answer resets the connection.
            with suppress(ConnectionResetError), connection, connection.makefile("rb") as lines:
                for line in islice(lines, messages):
                    heard.append(json.loads(line))
                    connection.sendall(b"" if "moved" in heard[-1] else answer if "qp" in heard[-1] else hello)
                    if later and "qp" in heard[-1]:
                        time.sleep(LATER_S)
                        connection.sendall(later)

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join()


def test_the_agent_learns_who_the_process_is_and_what_it_connects(driver, folder):
    """On connecting: the file of its records, and the variables of launchers; then a question for each connection."""
    with agent(folder, b'{"label":849}\n') as heard:
        running = driver("posts", RANK="3", C4BENCH_JOB='a "job"\\', HOME="/secret")
        running.process.communicate()
    hello, question = heard
    assert hello["ring"] == f"{running.pid}.ring"
    assert hello["environment"]["RANK"] == "3"
    assert hello["environment"]["C4BENCH_JOB"] == 'a "job"\\'
    assert "HOME" not in hello["environment"]
    assert question == ASKED


def test_the_agents_answer_is_what_the_device_gets(driver, folder):
    """Label, timeout and retries of the answer; what the program asked for is recorded beside them."""
    with agent(folder, b'{"label":849,"timeout":12,"retries":3}\n'):
        running = driver("posts")
        (pair,) = running.queue_pairs
        running.process.communicate()
    assert (pair.asked_label, pair.label) == (3, 849)
    assert (pair.asked_timeout, pair.timeout, pair.asked_retries, pair.retries) == (20, 12, 7, 3)
    assert running.said == ["849 12 3 3 20 7"]


def test_a_queue_pair_moves_while_its_program_posts(driver, folder):
    """It is drained, gets the label in SQD and is back; the program finds all completions, the drained ones too."""
    with agent(folder, b'{"label":849}\n', later=b'{"move":17,"device":1,"label":850}\n') as heard:
        running = driver("moves")
        (pair,) = running.queue_pairs
        running.process.communicate()
    assert running.said == ["0 850 1 0 1"]
    assert (pair.label, pair.asked_label) == (850, 3)
    assert pair.posted == pair.completed
    assert heard[2:] == [{"moved": 17, "device": 1, "label": 850, "refused": 0}]


def test_a_queue_pair_stays_where_its_device_does_not_let_it_move(driver, folder):
    """The agent learns that, and which queue pairs there are not; the program's work goes on."""
    wishes = (
        b'{"move":18,"device":1,"label":850}\n{"move":17,"device":2,"label":850}\n{"move":17,"device":1,"label":850}\n'
    )
    with agent(folder, b'{"label":849}\n' + wishes) as heard:
        running = driver("stays")
        running.process.communicate()
    assert running.said == ["0 0 0 0 1"]
    assert heard[2:] == [
        {"moved": 18, "device": 1, "label": 0, "refused": 0},
        {"moved": 17, "device": 2, "label": 0, "refused": 0},
        {"moved": 17, "device": 1, "label": 849, "refused": 1},
    ]


def test_the_agent_learns_which_queue_pairs_are_gone(driver, folder):
    """Also of those that go their own way: a path that is found later may be for them."""
    with agent(folder, b'{"label":0}\n') as heard:
        driver("come_and_go").process.communicate()
    gone = [one for one in heard if "moved" in one]
    assert gone == [{"moved": 17 + number, "device": 1, "label": 0, "refused": 0} for number in range(3000)]


def test_what_is_no_answer_changes_nothing(driver, folder):
    """Numbers out of range, 0, -1, other text, and an end of the connection: the program's own choice stands."""
    for answer in (
        b'{"label":1048576,"timeout":32,"retries":8}\n',
        b'{"label":0,"timeout":-1,"retries":-1}\n',
        b"\0\n",
    ):
        with agent(folder, answer):
            running = driver("posts")
            running.process.communicate()
        assert running.said == ["3 20 7 3 20 7"]
        (folder.parent / "agent").unlink()


def test_a_silent_agent_delays_one_connection(driver, folder):
    """Of 4,000 connections the first waits half a second for an answer, the others for none, and one line says so."""
    with agent(folder, b""):
        began = time.monotonic()
        running = driver("many")
        took_s = time.monotonic() - began
        _, said = running.process.communicate()
    assert took_s > ANSWER_S
    assert said.count("has not answered within 500 ms") == 1
    assert running.said == ["4000"]


def test_an_agent_that_comes_later_learns_of_the_process(driver, folder):
    """A process that goes on posting introduces itself to an agent that starts after it, and to the one after that."""
    running = driver("for_long")
    for _ in range(2):
        with agent(folder, b"", messages=1) as heard:
            while not heard:
                time.sleep(0.01)
        assert heard[0]["ring"] == f"{running.pid}.ring"
        (folder.parent / "agent").unlink()


def test_an_agent_that_comes_back_learns_of_planned_paths(driver, folder):
    """What an agent before it has planned is said once to the next one, and that moves it; the rest is not."""
    with agent(folder, b'{"label":849}\n', messages=2) as first:
        driver("for_long")
    (folder.parent / "agent").unlink()
    wish = b'{"move":17,"device":1,"label":850}\n'
    with agent(folder, wish, messages=3) as second:
        while len(second) < 3:
            time.sleep(0.01)
    assert first[1:] == [ASKED]
    assert second[1:] == [ASKED | {"label": 849}, {"moved": 17, "device": 1, "label": 850, "refused": 0}]


def test_a_process_that_the_agent_refuses_runs_without_it(driver, folder):
    """A refusal is said in one line, and nothing more is asked."""
    with agent(folder, b"", b'{"error":"user 4711 may not"}\n') as heard:
        running = driver("many")
        _, said = running.process.communicate()
    assert "user 4711 may not" in said
    assert running.said == ["4000"]
    assert [*heard[0]] == ["ring", "environment"]
    assert len(heard) == 1
