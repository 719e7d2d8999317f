"""What counters of switch ports say about a cable: only errors that grow speak against it."""

import json
from pathlib import Path

import pytest

from c4bench.decoding import json_in
from c4bench.doctor.switches import any_errors, growing, of_portstat, standing

CASES = Path(__file__).parents[2] / "evidence_fixtures/cases/16-device-outputs"


def table(name):
    """The counters in `show interfaces counters`, whose columns have the names of `portstat -j`."""
    heading, _, *rows = [line for line in (CASES / name).read_text().splitlines() if not line.startswith("Last")]
    units = heading.replace("_BPS", "_BPS UNIT").split()
    return of_portstat({(words := row.split())[0]: dict(zip(units, words, strict=True)) for row in rows})


def portstat(name):
    return of_portstat(json_in((CASES / "portstat_json" / name).read_bytes(), dict))


@pytest.mark.parametrize(
    ("counts", "port", "drops"),
    [(table("acl_drops/show_interfaces_counters.txt"), "Ethernet24", 4117),
     (portstat("drops_only.json"), "Ethernet4", 2306)],
    ids=["table", "json"],
)  # fmt: skip
def test_discards_are_no_matter_of_a_cable(counts, port, drops):
    """Packets that a rule discards are noted, and no second reading is asked for."""
    assert not any_errors(counts)
    assert list(growing(counts, counts)) == []
    said = f"{port}: RX_DRP {drops}: discarded by a rule, a VLAN or congestion, not by the cable"
    assert list(standing(counts, counts)) == [said]


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        (
            table("rx_err_growing/counters_1000.txt"), table("rx_err_growing/counters_1010.txt"),
            "Ethernet40: errors grow, RX_ERR 17 to 9803",
        ),
        (
            portstat("rx_err_before.json"), portstat("rx_err_after.json"),
            "Ethernet20: errors grow, RX_ERR 1204 to 88916",
        ),
    ],
    ids=["table", "json"],
)  # fmt: skip
def test_errors_that_grow_are_of_that_link(before, after, grown):
    """Of several ports with errors, only the one whose errors grow between two readings is to be looked at."""
    assert any_errors(before)
    assert list(growing(before, after)) == [f"{grown}; check the cable, the optics, and the port at its other end"]
    notes = "\n".join(standing(before, after))
    assert grown.partition(":")[0] + ": RX_ERR" not in notes


def test_errors_that_stand_are_noted_only():
    """Ethernet56 had three errors before and after: no reason to touch its cable; Ethernet48 has drops."""
    notes = list(standing(table("rx_err_growing/counters_1000.txt"), table("rx_err_growing/counters_1010.txt")))
    assert notes == [
        "Ethernet48: RX_DRP 2: discarded by a rule, a VLAN or congestion, not by the cable",
        "Ethernet56: RX_ERR 3 in all, not growing: no reason to touch the cable",
    ]


def test_values_that_are_no_numbers_are_left_out():
    """What a platform does not have, and numbers of 5,000 digits, are no counters; a port's name is printed safely."""
    rows = {"Eth\x1b[2J": {"RX_ERR": "N/A", "TX_ERR": "9" * 5000, "RX_DRP": "7"}, "odd": 3}
    counts = of_portstat(json.loads(json.dumps(rows)))
    assert counts == {"Eth\x1b[2J": {"RX_DRP": 7}, "odd": {}}
    assert [line.partition(":")[0] for line in standing(counts, counts)] == ["Eth\\x1b[2J"]
