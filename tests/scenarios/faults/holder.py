"""Holds faults on the host that it runs on: each line begins or ends one, and is answered by a line. Sent as text."""

import json
import sys
import tempfile
from pathlib import Path

import msgspec

from c4bench.errors import C4Error
from c4bench.inject import catalogue
from c4bench.inject.fault_session import FaultSession, lease_of
from c4bench.inject.journal import Journal
from c4bench.model.fault import FaultRequest


class Holder:
    """The faults in force, by id, with a journal of their own in `root`."""

    def __init__(self, root):
        self._catalogue, self._records, self._held = catalogue.load(), Journal(root), {}

    def begin(self, text):
        """The new fault's id as `[id, ""]`; or `["", reason]` if it is refused."""
        spec, request = self._catalogue.resolve(msgspec.json.decode(text, type=FaultRequest))
        held = FaultSession(self._records, lease_of(request))
        try:
            held.begin(spec)
        except C4Error as error:
            held.end()
            return "", str(error)
        self._held[held.lease.id] = held
        return held.lease.id, ""

    def end(self, fault_id):
        """What is not as it was before, a line each."""
        return self._held.pop(fault_id).end().residue


with tempfile.TemporaryDirectory(prefix="c4bench-overlaps-") as folder:
    holder = Holder(Path(folder))
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        answer = {"begin": holder.begin, "end": holder.end}[word](rest)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
