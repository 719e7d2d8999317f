"""`c4bench master` inside a lab: started as a user would, killed, and asked for its pages."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from c4bench.wire.messages import PORT
from c4bench.wire.trust import client_context


class LabMaster:
    """A master with a state folder, that may be killed and started again."""

    ADDRESS = f"127.0.0.1:{PORT}"
    STATE = Path("/run/c4/master")

    def __init__(self, trust, *options):
        self.trust, self._options, self._lives = trust, options, 0
        self._process = None

    def start(self):
        """The command a user would run; returns once it listens."""
        self._lives += 1
        command = [sys.executable, "-m", "c4bench.cli.main", "master", f"--trust={self.trust}", "--log-format=json"]
        options = [f"--listen=0.0.0.0:{PORT}", f"--state={self.STATE}", *self._options]
        with self._log(self._lives).open("w") as log:
            self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout.readline().startswith("listening"), self._log(self._lives).read_text()

    def kill(self):
        """As an administrator in a hurry, or the kernel, would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _log(self, life):
        return Path(f"/run/c4/master-{life}.log")

    def logs(self):
        """The lines of the log, for each life."""
        return [
            [json.loads(line) for line in self._log(life).read_text().splitlines()]
            for life in range(1, self._lives + 1)
        ]

    def get(self, page, tls=None):
        """A page of the master, by plain HTTPS."""
        tls = tls or client_context(*(self.trust / name for name in ("ca.pem", "observer.pem", "observer.key")))
        tls.check_hostname = False
        with urllib.request.urlopen(f"https://{self.ADDRESS}{page}", context=tls, timeout=10) as answer:
            return answer.read().decode()

    def health(self):
        """The health page."""
        return json.loads(self.get("/health"))

    def connected(self):
        """How many agents are connected."""
        return sum(agent["connected"] for agent in self.health()["agents"].values())

    def events(self, kind=None):
        """The events so far, by its log."""
        log = self.STATE / "events.jsonl"
        events = map(json.loads, log.read_text().splitlines() if log.exists() else ())
        return [event for event in events if kind in (None, event["event"])]


def until(holds, timeout_s=60.0):
    """Wait for something that a file or a page shows."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)
    return found
