"""`c4bench master --page` and `c4bench token` as people use them."""

import datetime
import re
import signal
import subprocess
import sys
import urllib.error

import pytest
from local_master import Scene

from c4bench.cli.main import main
from c4bench.deploy import authority


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    """Certificates of one fabric."""
    made = tmp_path_factory.mktemp("trust")
    authority.establish(made, ["h0"], datetime.datetime.now(datetime.UTC))
    return made


def answer_of(scene, path):
    """The status and text of a page of the master."""
    try:
        return 200, scene.page(path)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_master_is_alive_and_ready(trust, tmp_path):
    """`/healthz` and `/readyz` answer on the master's port, to clients with a certificate."""
    scene = Scene(trust, tmp_path)
    try:
        assert scene.page("/healthz") == "ok\n"
        answers = [answer_of(scene, "/readyz")]
        while answers[-1] == (503, "telemetry has not been evaluated yet\n"):
            answers.append(answer_of(scene, "/readyz"))
        assert answers[-1] == (200, "ok\n")
    finally:
        scene.stop()


def test_a_master_serves_its_page(trust, tmp_path, capsys):
    """The page's address and certificate are in the log, and a token that the command makes opens it."""
    state = tmp_path / "state"
    words = ["master", f"--trust={trust}", "--listen=127.0.0.1:0", f"--state={state}", "--page=127.0.0.1:0"]
    master = subprocess.Popen(
        [sys.executable, "-m", "c4bench.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert master.stdout.readline().startswith("listening")
        assert main(["token", "create", "ann", "--state", str(state), "--hours", "1"]) == 0
        token = capsys.readouterr().out.strip()
        assert main(["token", "list", "--state", str(state)]) == 0
        assert capsys.readouterr().out.startswith("ann\t20")
        assert main(["token", "revoke", "ann", "--state", str(state)]) == 0
        assert main(["token", "list", "--state", str(state)]) == 0
        assert (capsys.readouterr().out, len(token)) == ("", 43)
    finally:
        master.send_signal(signal.SIGTERM)
        log = master.communicate()[1]
    assert re.search(r"live page: https://127\.0\.0\.1:\d+/", log)
    assert re.search(r"page\.pem, SHA-256 ([0-9A-F]{2}:){31}", log)
    assert master.returncode == 0
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--page", "here"], "--page here: write ADDRESS:PORT"),
        (["--page", "127.0.0.1:99999"], "--page 127.0.0.1:99999: write ADDRESS:PORT"),
        (["--faults", "f"], "give --page too"),
        (
            ["--page", "127.0.0.1:0", "--page-certificate", "none.pem", "none.key"],
            "none.pem and none.key are no certificate",
        ),
        (["--page", "192.0.2.1:1"], "--page 192.0.2.1:1: "),
    ],
)
def test_bad_options_start_nothing(trust, tmp_path, capsys, words, line):
    """A page that cannot be served ends the command in one line, and no agent is waited for."""
    code = main(["master", f"--trust={trust}", "--listen=127.0.0.1:0", f"--state={tmp_path}", *words])
    printed = capsys.readouterr()
    assert code in (2, 3)
    assert line in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "1e9"])
def test_a_token_has_an_end(tmp_path, capsys, hours):
    """A token that never ends, or has ended, is not made."""
    assert main(["token", "create", "ann", "--state", str(tmp_path), "--hours", hours]) == 2
    assert "--hours" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
