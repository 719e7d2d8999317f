"""What transfers cost that have not ended: at least what they have taken so far."""

from collections import Counter
from collections.abc import Mapping

from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.connections import cell_of
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.localise import Cell


def in_flight_costs(job: JobView, clocks: HostClocks, message_bytes: Mapping[Cell, float]) -> dict[Cell, float]:
    """Seconds per byte, at least, of each cell with messages under way of which none has been acknowledged for a while.

    `message_bytes` are a cell's usual message. All connections that a rank has on the NIC may share its time.
    """
    views = list(job.conns.values())
    sharing = Counter((view.record.comm, view.record.rank, view.record.source) for view in views)
    found: dict[Cell, float] = {}
    for view in views:
        conn, cell = view.record, cell_of(view.record)
        size = conn.outstanding * message_bytes.get(cell, 0.0)
        if size > 0:
            told_s = clocks.last_heard_s(view.host) - clocks.offset_s(view.host)
            lasted_s = told_s - max(conn.state_since_s, conn.last_progress_s)
            least = lasted_s / sharing[conn.comm, conn.rank, conn.source] / size
            found[cell] = max(least, found.get(cell, 0.0))
    return found
