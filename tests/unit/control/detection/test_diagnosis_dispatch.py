"""A diagnosis reaches the event log, path planning and steering, in this order."""

import asyncio

from c4bench.c4p.knowledge.link_names import NamedLinks
from c4bench.control.detection.telemetry import DiagnosisDispatch
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.store import Store
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome

FIRST, SECOND = (
    Diagnosis("j~1", Syndrome.COMMUNICATION_SLOW, Component("link", f"10.0.0.{n}"), 1.0, 2.0, 3.0, 0.9, (), "")
    for n in range(2)
)


def test_every_consumer_gets_each_diagnosis_after_it_is_saved(caplog):
    """Each diagnosis is published and applied to paths one by one; consumers then get all of an attempt together."""
    log, calls = EventLog(Store(None)), []

    class Paths:
        named = NamedLinks(names={"10.0.0.1": "leaf2/up1 > spine1/down2"})

        async def apply_diagnosis(self, diagnosis):
            calls.append(("paths", diagnosis, len(log.diagnoses)))

    def consume(attempt, diagnoses):
        calls.append((attempt, *diagnoses, len(log.diagnoses)))

    dispatch = DiagnosisDispatch(log, Paths(), (consume, consume))
    asyncio.run(dispatch.publish("j~1", [FIRST, SECOND], 4.0))
    assert calls == [("paths", FIRST, 1), ("paths", SECOND, 2), *[("j~1", FIRST, SECOND, 2)] * 2]
    assert [event.time_s for event in log.events] == [4.0, 4.0]
    assert log.counts() == {"j": {"communication_slow": 2}}
    assert [record.getMessage() for record in caplog.records] == [
        f"j~1: communication_slow: link {link}, confidence 0.90" for link in ("10.0.0.0", "leaf2/up1 > spine1/down2")
    ]
