"""What nats-server lets whom do."""

import json
from pathlib import Path

from c4bench.bus.server import BusStore, server_config
from c4bench.bus.subjects import Subjects


def configured():
    """A configuration for two hosts and a cluster."""
    return json.loads(
        server_config(Path("/t"), BusStore(Path("/s"), 5), "0.0.0.0:4222", [Subjects("c4")], ["h0", "h1"])
    )


def users(account):
    """The users of an account, with their permissions."""
    return {user["user"]: user["permissions"] for user in configured()["accounts"][account]["users"]}


def test_nobody_gets_in_without_a_certificate_of_ours():
    """Clients are who their certificates say, and nothing else is listened on."""
    found = configured()
    assert found["jetstream"]["max_file_store"] == 5
    assert found["tls"]["verify_and_map"] is True
    assert {"http", "http_port", "websocket", "leafnodes", "cluster", "mqtt"}.isdisjoint(found)
    assert (list(users("shared")), list(users("masters"))) == (["h0", "h1", "detector", "bus-master"], ["bus-leader"])


def test_an_agent_may_publish_its_own_windows_and_nothing_else():
    """Subjects of an agent end in its own host, and it may read nothing."""
    windows = ["c4.c4.job.*.window.h0", "c4.c4.job.*.names.h0.begin", "c4.c4.job.*.names.h0.change"]
    assert users("shared")["h0"] == {"publish": {"allow": windows}, "subscribe": {"deny": [">"]}}


def test_no_permission_is_an_empty_list():
    """An empty list of what is allowed allows everything: each list has subjects, none of which is every subject."""
    lists = [
        subjects
        for account in ("shared", "masters")
        for permissions in users(account).values()
        for subjects in permissions.values()
    ]
    assert len(lists) == 10
    assert all(
        subjects == {"deny": [">"]} or (subjects["allow"] and ">" not in subjects["allow"]) for subjects in lists
    )


def test_a_detector_may_not_touch_the_master_s_state():
    """A detector reads telemetry and writes leases, findings and arrivals; it has no subject of the state."""
    detector = users("shared")["detector"]["publish"]["allow"]
    assert not [subject for subject in detector if "c4-c4-state" in subject or subject in {">", "$JS.API.>"}]
    assert "c4.c4.finding.*" in detector
