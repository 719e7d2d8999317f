"""The lines that a fault leaves in a history: what was asked, seen and left."""

import json

from fakes import nic_request

from c4bench.inject.controller import HistoryFile, applied_event, healed_event
from c4bench.inject.protocol import Applied, Healed
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fault import WitnessReport

REQUEST = nic_request("nic.rate", fraction=0.25, direction="rx")
SEEN = WitnessReport(True, 10.5, {"peak_bps": 9e9}, {"peak_bps": 2.4e9})
NIC = Component("nic", "h5/0", "rx")
APPLIED = Applied("id", "nic.rate", NIC, Syndrome.COMMUNICATION_SLOW, 10.0, 0.001, 40.0, SEEN)


def test_an_onset_has_what_was_asked_for_and_what_was_seen():
    """Parameters, the witness's values before and during, and when the effect was first seen."""
    assert applied_event(APPLIED, REQUEST) == {
        "fault": "nic.rate",
        "host": "h5",
        "target": str(NIC),
        "observed_s": 10.5,
        "seen": True,
        "plane": "state",
        "fraction": 0.25,
        "direction": "rx",
        "before_peak_bps": 9e9,
        "during_peak_bps": 2.4e9,
    }


def test_an_end_has_its_reason_and_what_is_left():
    """Who ended it and why, whether the target has recovered, and the residue in one line; a target may be unknown."""
    healed = Healed("id", "lease", "watchdog", 12.0, None, {"peak_bps": 9e9}, ("+ netem", "- route"), ())
    event = healed_event(healed, APPLIED, REQUEST)
    assert (
        event.items()
        >= {
            "fault": "nic.rate",
            "host": "h5",
            "target": str(NIC),
            "reason": "lease",
            "by": "watchdog",
            "recovered": None,
            "residue": "+ netem; - route",
        }.items()
    )
    nameless = Applied("id", "nic.mtu", None, None, 10.0, 0.001, 40.0, SEEN)
    assert healed_event(healed, nameless, REQUEST)["target"] == applied_event(nameless, REQUEST)["target"] == ""


def test_lines_are_appended_in_one_write_each(tmp_path):
    """Time and kind first, then the fields by name; the folder is made, and lines of others stay."""
    path = tmp_path / "new" / "events.jsonl"
    HistoryFile(path).event(1.5, "applied", z=1, a="x")
    HistoryFile(path).event(2.0, "healed")
    lines = path.read_text().splitlines()
    assert lines == ['{"time_s":1.5,"kind":"applied","a":"x","z":1}', '{"time_s":2.0,"kind":"healed"}']
    assert [json.loads(line)["kind"] for line in lines] == ["applied", "healed"]
    assert path.stat().st_mode & 0o777 == 0o644
