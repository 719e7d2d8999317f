"""Read-side checks: what is duplicated, reordered, late or torn is dropped and counted, never believed."""

import math

from c4bench.model.telemetry import ConnRecord, OpRecord, Window

# Seconds summed in another order may differ in the last bits.
_ROUNDING_S = 1e-9


class Intake:
    """Decides which windows and records may be believed; `dropped` counts those that may not."""

    def __init__(self) -> None:
        self.dropped = 0
        self._latest: dict[str, Window] = {}

    def admit(self, window: Window) -> bool:
        """Whether `window` is whole and newer than everything its host has sent."""
        ok = _well_formed(window) and self._newer(window)
        if ok:
            # Only the header is needed to place the next one.
            self._latest[window.host] = Window(
                window.host, window.sequence, window.start_s, window.end_s, (), (), (), ()
            )
        else:
            self.dropped += 1
        return ok

    def admit_op(self, op: OpRecord) -> bool:
        """Whether an operation's times are in order."""
        ok = op.seq >= 0 and _ordered(op)
        self.dropped += not ok
        return ok

    def admit_conn(self, conn: ConnRecord, before: ConnRecord | None) -> bool:
        """Whether every cumulative counter is finite and no lower than `before`."""
        counters = _counters(conn)
        ok = all(math.isfinite(value) and value >= 0 for value in counters)
        if ok and before is not None:
            ok = all(new >= old - _ROUNDING_S for new, old in zip(counters, _counters(before), strict=True))
        self.dropped += not ok
        return ok

    def _newer(self, window: Window) -> bool:
        latest = self._latest.get(window.host)
        # A restarted agent counts from zero again, but its time goes on.
        return latest is None or window.sequence > latest.sequence or window.start_s >= latest.end_s


def _well_formed(window: Window) -> bool:
    return math.isfinite(window.start_s) and math.isfinite(window.end_s) and window.start_s < window.end_s


def _ordered(op: OpRecord) -> bool:
    times = (op.entered_s, op.started_s, op.finished_s)
    if not all(math.isfinite(value) for value in times):
        return False
    started = op.started_s == 0.0 or op.started_s >= op.entered_s
    return started and (op.finished_s == 0.0 or op.finished_s >= max(op.entered_s, op.started_s))


def _counters(conn: ConnRecord) -> tuple[float, ...]:
    return (conn.messages, conn.size_bytes, conn.wait_credit_s, conn.wait_data_s, conn.transfer_s)
