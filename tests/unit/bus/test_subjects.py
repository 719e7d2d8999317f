"""Names on the bus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.bus.connection import checked_address
from c4bench.bus.subjects import BEGIN, SubjectPlace, Subjects, name_of, place, token
from c4bench.decoding import DecodingError
from c4bench.errors import UsageError

pytestmark = pytest.mark.hypothesis


@given(st.text(min_size=1))
def test_any_name_is_one_token_and_can_be_read_back(name):
    """Whatever a job or host is called, it is one token of a subject without wildcards, and another name is another."""
    written = token(name)
    assert set(written) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=")
    assert name_of(written) == name


@pytest.mark.parametrize("text", ["=FF", "=41", "=2e", "a.b", "caf\u00e9", "\\xff", "=", "a b"])
def test_what_no_name_is_written_as_is_none(text):
    """A token that is no text, or another spelling of a name, is refused: no two tokens are one job or host."""
    with pytest.raises(DecodingError):
        name_of(text)


@pytest.mark.parametrize("rest", ["", "window", "window.h0.x", "names.h0", "names.h0.end", "report.x", "window.=FF"])
def test_a_subject_that_no_telemetry_has_is_refused(rest):
    """Of a job there are windows, windows with names, and reports."""
    with pytest.raises(DecodingError):
        place(f"c4.c4.job.j.{rest}")


def test_what_a_subject_is_for_can_be_read_back():
    """A window's subject says its host and what names it has."""
    subjects = Subjects("c4")
    assert place(subjects.window("j", "h.0")) == SubjectPlace("h.0")
    assert place(subjects.window("j", "h.0", BEGIN)) == SubjectPlace("h.0", BEGIN)
    assert place(subjects.report("j")) == SubjectPlace("")


def test_a_name_cannot_reach_another_job_or_host():
    """Dots and wildcards in names do not change which subject a message goes to."""
    subjects = Subjects("east")
    assert subjects.window("a.>", "h0.*", BEGIN) == "c4.east.job.a=2E=3E.names.h0=2E=2A.begin"
    assert subjects.windows_of("h0.x")[0] == "c4.east.job.*.window.h0=2Ex"


@pytest.mark.parametrize("cluster", ["", "a.b", "a b", "*", "x" * 33])
def test_what_is_no_name_of_a_cluster_is_refused(cluster):
    """A cluster's name is a token as it is."""
    with pytest.raises(UsageError, match="no name of a cluster"):
        Subjects(cluster)


@pytest.mark.parametrize("address", ["host:4222", "nats://host", "nats://:4222", "http://host:4222", "nats://h:x"])
def test_what_is_no_address_is_refused_with_an_example(address):
    """An address has a scheme, a host and a port."""
    with pytest.raises(UsageError, match=r"nats://bus\.example:4222"):
        checked_address(address)
