"""What `heal`, `status` and `schema` of the injector say and do about faults in force and hosts that are not clean."""

import json

import msgspec
import pytest
from held_faults import CATALOGUE, REQUEST, factor

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import __main__ as injector
from c4bench.inject import catalogue, fault_session, protocol
from c4bench.inject.journal import Journal
from c4bench.model.fault import TargetKind


@pytest.fixture
def held(place, monkeypatch, tmp_path):
    """A fault in force, in one of the two journals of a host; returns it with its journal."""
    switch = Journal(tmp_path / "switch")
    monkeypatch.setattr(Journal, "every", classmethod(lambda _: [switch, place]))
    spec, request = CATALOGUE.resolve(REQUEST)
    session = fault_session.FaultSession(place, fault_session.lease_of(request))
    session.begin(spec)
    yield session
    session.end()


def said(capsys):
    """The lines of standard output, decoded."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_faults_in_force_are_listed_until_they_are_healed(held, tmp_path, capsys):
    """`status` prints each lease; `heal` reverts it, says so, and leaves nothing to list or to heal."""
    injector._status()
    (lease,) = said(capsys)
    assert (lease["id"], lease["request"]["fault"]) == (held.lease.id, "process.slow")
    assert factor(tmp_path) == 3.0
    injector._heal()
    (reverted,) = said(capsys)
    assert (reverted["id"], reverted["by"]) == (held.lease.id, "heal")
    assert factor(tmp_path) == 1.0
    injector._status()
    injector._heal()
    assert said(capsys) == []


def test_one_fault_is_healed_by_its_id(held, tmp_path, capsys):
    """It may be in any of the host's journals; an id that none has is refused with what may be wrong."""
    with pytest.raises(UsageError, match=r"no fault other is in force here: the id is wrong or its lease has expired"):
        injector._heal("other")
    assert factor(tmp_path) == 3.0
    injector._heal(held.lease.id)
    assert [line["id"] for line in said(capsys)] == [held.lease.id]
    assert factor(tmp_path) == 1.0


def test_what_cannot_be_healed_is_an_error_after_all_else_is(held, place, tmp_path, capsys):
    """A damaged entry is named, by `heal` as an error and by `status` in the log; other faults are healed first."""
    damaged = place._faults / "damaged.json"
    damaged.write_text("{")
    injector._status()
    assert [line["id"] for line in said(capsys)] == [held.lease.id]
    with pytest.raises(UnhealthyError, match="damaged"):
        injector._heal()
    assert factor(tmp_path) == 1.0
    damaged.unlink()


def test_schemas_are_printed_for_editors(capsysbinary):
    """Of a catalogue file unless the output's is asked for; another one is refused with those there are."""
    for words, schema in (((), catalogue.schema), (("catalogue",), catalogue.schema), (("output",), protocol.schema)):
        injector._schema(*words)
        text = capsysbinary.readouterr().out
        assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode(schema()))
        assert text.startswith(b'{\n  "')
        assert text.endswith(b"}\n")
    with pytest.raises(UsageError, match="there is no schema of 'x'; there is one of catalogue and one of output"):
        injector._schema("x")


@pytest.mark.parametrize("words", [[], ["nosuch"], ["hold"], ["heal", "a", "b"], ["status", "x"], ["plan", "a", "b"]])
def test_words_that_are_no_command_are_refused(words, capsys):
    """Too many and too few arguments as well; the answer is one line, and its code that of bad input."""
    assert injector.main(words) == 2
    (refused,) = said(capsys)
    assert refused["exit_code"] == 2
    assert "is no command: say hold or plan REQUEST, try, heal [ID], status, may, schema" in refused["error"]


def test_a_switch_without_its_namespace_is_refused():
    """The inventory names a network namespace that is not there."""
    request = msgspec.structs.replace(REQUEST, netns="/run/netns/no-such-switch")
    with (
        pytest.raises(UsageError, match=r"h5: .*no-such-switch.*; correct the inventory's netns"),
        injector._pinned(request),
    ):
        pass
    with injector._pinned(REQUEST) as inodes:
        assert inodes == {}


def test_a_fault_of_a_rank_is_in_the_hosts_journal():
    """That of a switch has a journal of its own, by the switch's name."""
    own, switch = Journal.of(TargetKind.PROCESS, "h5"), Journal.of(TargetKind.SWITCH, "leaf0")
    assert own._root == Journal()._root
    assert switch._root == own._root / "switches" / "leaf0"
