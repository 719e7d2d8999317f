"""Whatever a host writes, the detector neither falls over nor blames anybody for it."""

import math

import msgspec
import numpy as np
from c4d_telemetry import MIX, drive, remade
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.c4d.detector import Detector
from c4bench.c4d.offline import detect
from c4bench.model.diagnosis import Component
from c4bench.model.telemetry import Member, RankRecord
from c4bench.model.window import HostNames
from c4bench.model.window_columns import ARRIVAL_ROW, CONN_ROW, OP_ROW
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

_RANKS = 4
_FUZZ = settings(max_examples=examples(3, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_NUMBERS = st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 1e11, 3.7])
_COUNTS = st.sampled_from([-1, 0, 1, 7, 2**31, 2**63, 2**70])
_NAMES = st.sampled_from(["", "h0", "h1", "h9", "h1/0", "job.world", "x" * 300, "\0"])
_NUMBERS_IN_ROWS = st.sampled_from([-(2**63), -1, 0, 1, 7, 2**31, 2**63 - 1])
_TABLES = {"op_table": OP_ROW, "conn_table": CONN_ROW, "arrival_table": ARRIVAL_ROW}
_VALUES = {float: _NUMBERS, int: _COUNTS, str: _NAMES}


@st.composite
def _spoiled(draw, record):
    """A record with one field that is not what it should be; a process keeps its state, which is no lie to detect."""
    named = isinstance(record, tuple)
    own = record._fields if named else record.__struct_fields__
    fields = [name for name in own if type(getattr(record, name)) in _VALUES and name != "state"]
    name = draw(st.sampled_from(fields))
    changes = {name: draw(_VALUES[type(getattr(record, name))])}
    return record._replace(**changes) if named else msgspec.structs.replace(record, **changes)


@st.composite
def _attacks(draw, window):
    """The window with one thing spoiled: its head, or a record of any layer."""
    layer = draw(st.sampled_from(["head", "ranks", "awaits", *HostNames.__struct_fields__, *_TABLES]))
    if layer in _TABLES:
        return draw(_spoiled_row(window, layer))
    if layer == "awaits":
        return msgspec.structs.replace(window, awaits=draw(st.binary(max_size=8)))
    holder = window.names if hasattr(window.names, layer) else window
    records = getattr(holder, layer, ())
    if not records:
        return draw(_spoiled(window))
    index = draw(st.integers(0, len(records) - 1))
    bad = draw(_spoiled(records[index]))
    spoiled = msgspec.structs.replace(holder, **{layer: (*records[:index], bad, *records[index + 1 :])})
    return spoiled if holder is window else msgspec.structs.replace(window, names=spoiled)


@st.composite
def _spoiled_row(draw, window, table):
    """The window with one number of a table changed, which may be the number of a name."""
    rows = np.frombuffer(getattr(window, table), _TABLES[table]).copy()
    if len(rows):
        name = draw(st.sampled_from(rows.dtype.names))
        number = np.array([draw(_NUMBERS_IN_ROWS)], np.int64)
        rows[name][draw(st.integers(0, len(rows) - 1))] = number.astype(rows.dtype[name])[0]
    return msgspec.structs.replace(window, **{table: rows.tobytes()})


@_FUZZ
@given(st.data())
def test_spoiled_records_make_no_finding(data):
    """One field of one record in many windows of one host is nonsense: nobody is blamed, and judging goes on."""
    detector, found = Detector(), []
    liar = f"h{data.draw(st.integers(0, _RANKS - 1))}"
    ticks = data.draw(st.sets(st.integers(3, 35), max_size=12))
    for number, tick in enumerate(simulate(SimJob(_RANKS, MIX, seed=number_of(ticks)), (), 4.0)):
        for window in tick.windows:
            spoil = window.host == liar and number in ticks
            detector.ingest_window(data.draw(_attacks(window)) if spoil else window)
        found += detector.evaluate(tick.time_s)
    assert found == []


def number_of(ticks):
    """A seed that differs with the example."""
    return sum(ticks)


def test_agent_speaks_for_its_own_host_only():
    """That another host's rank is dead, hangs or stands still is not for this one to say: dropped and counted."""
    detector, found = Detector(), []
    for tick in simulate(SimJob(_RANKS, MIX, seed=1), (), 5.0):
        for window in tick.windows:
            lies = (RankRecord("job", 2, "h2", 99, "killed", -9), RankRecord("job", 2, "h0", 99, "killed", -9))
            stolen = tuple(msgspec.structs.replace(op, rank=2, finished_s=0.0) for op in window.ops)
            spoken = remade(window, ranks=(*window.ranks, lies[0]), ops=window.ops + stolen)
            detector.ingest_window(spoken if window.host == "h0" else window)
        found += detector.evaluate(tick.time_s)
    assert found == []
    assert {"foreign process", "foreign operation"} <= detector.dropped_by_reason.keys()


def test_communicator_is_who_it_first_was():
    """A communicator introduced again with other members, or without one on the host, stays as it is."""
    detector = Detector()
    for tick in simulate(SimJob(_RANKS, MIX, seed=1), (), 3.0):
        for window in tick.windows:
            (record,) = window.comms
            other = msgspec.structs.replace(record, members=record.members[::-1])
            alien = msgspec.structs.replace(record, comm="alien", members=(Member(0, "h9", ("h9/0",)),))
            detector.ingest_window(remade(window, comms=(record, other, alien)))
        assert detector.evaluate(tick.time_s) == []
    assert detector.dropped_by_reason.keys() == {"torn communicator"}


def test_finding_stands_though_a_third_of_the_windows_is_lost():
    """Windows that come late, twice or not at all delay a finding; they do not change it."""
    job, fault = SimJob(8, MIX, seed=4), SimFault(SimFaultKind.HUNG, 5, 3.0)
    detector, found = Detector(), []
    for number, tick in enumerate(simulate(job, [fault], 6.0)):
        for index, window in enumerate(tick.windows):
            for _ in range((0, 1, 2)[(number + index) % 3]):
                detector.ingest_window(window)
        found += detector.evaluate(tick.time_s)
    assert [one.component for one in found] == [Component("rank", "job:5")]
    assert detector.dropped_by_reason.keys() == {"old window"}


def test_clock_that_is_far_off_does_not_stop_offline_judging():
    """A recording in which one host's clock jumps by a year gives the verdict that it gives without."""
    job, fault = SimJob(6, MIX, seed=5), SimFault(SimFaultKind.STOPPED, 2, 3.0)
    windows = [one for tick in simulate(job, [fault], 6.0) for one in tick.windows]
    year_s = 365 * 86400.0
    jumped = [
        remade(one, start_s=one.start_s + year_s, end_s=one.end_s + year_s, ops=(), conns=())
        if one.host == "h4" and one.end_s > 2.0
        else one
        for one in windows
    ]
    assert [one.component for one in detect(jumped)] == [one.component for one in drive(job, [fault], 6.0)]
