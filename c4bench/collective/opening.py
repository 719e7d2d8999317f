"""Open what a rank needs in a communicator: its NICs, and the communicator's record."""

from collections.abc import Sequence
from contextlib import ExitStack

from c4bench.collective.memory import Buffers
from c4bench.collective.null_recorder import NullRecorder
from c4bench.collective.options import Options
from c4bench.collective.process import RankProcess
from c4bench.collective.ring_layout import MAX_RANKS
from c4bench.collective.wiring import RankEndpointContext
from c4bench.errors import UsageError
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Member
from c4bench.verbs.transport import Port


def used_nics(members: Sequence[Member], nics: Sequence[Nic], options: Options) -> tuple[Nic, ...]:
    """The NICs of this rank that become channels. Raises UsageError if members have too few NICs, or are too many."""
    most = min([len(nics), *(len(member.nics) for member in members)])
    channels = options.channels or most
    if not 0 < channels <= most:
        raise UsageError(f"{channels} channels need as many NICs on every member; the least has {most}")
    if len(members) > MAX_RANKS:
        raise UsageError(f"{len(members)} ranks; a communicator records at most {MAX_RANKS}")
    return tuple(nics[:channels])


def open_site(
    undo: ExitStack,
    name: str,
    rank: int,
    members: Sequence[Member],
    process: RankProcess,
    options: Options,
    nics: tuple[Nic, ...],
) -> RankEndpointContext:
    """Open the NICs and the record; `undo` closes them, and releases the paths planned since."""
    buffers = Buffers()
    undo.callback(buffers.close)
    ports = tuple(_opened(undo, process.open_port(nic)) for nic in nics)
    recording = process.recorder if options.record else NullRecorder()
    index = recording.communicator(CommRecord(name, process.job, tuple(members)), rank)
    undo.callback(recording.release, index)
    site = RankEndpointContext(
        name, rank, tuple(members), process, nics, ports, recording, index, options, buffers=buffers
    )
    undo.callback(_release_routes, site)
    return site


def _opened(undo: ExitStack, port: Port) -> Port:
    undo.callback(port.close)
    return port


def _release_routes(site: RankEndpointContext) -> None:
    if site.routed:
        site.process.rendezvous.release([qp.flow.id for qp in site.routed])
