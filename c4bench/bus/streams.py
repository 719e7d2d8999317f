"""The streams and buckets of a cluster, which its master makes.

What agents publish is not acknowledged: nats-server sends an acknowledgement wherever the publisher says, also to
subjects that the publisher may not use, such as the request to empty a stream.
"""

import msgspec
from nats.js import api
from nats.js.errors import BadRequestError

from c4bench.budget import BUS_MESSAGE, BUS_VALUE
from c4bench.bus.connection import Bus
from c4bench.bus.subjects import bucket_stream

_DAY_S = 86_400.0
# Agents send all names again after 256 changes.
_NAMES_EACH_AT_MOST = 1024
_FINDINGS_AT_MOST_BYTES, _FABRIC_AT_MOST_BYTES, _NAMES_AT_MOST_BYTES = 64 << 20, 256 << 20, 1 << 30
_JOBS_AT_MOST_BYTES, _LEASES_AT_MOST_BYTES = 128 << 20, 64 << 20


class Limits(msgspec.Struct, frozen=True):
    """How much of the jobs' telemetry the bus holds: whichever is reached first, the oldest goes."""

    seconds: float = 120.0
    size_bytes: int = 1 << 30


async def make(bus: Bus, limits: Limits) -> None:
    """Make what agents, detectors and masters share, or give it other limits. Raises one of FAILURES."""
    names = bus.subjects
    copied = api.StreamSource(name=names.telemetry, filter_subject=names.every_name)
    for config in (
        _stream(names.telemetry, [names.every_job], limits.size_bytes, max_age=limits.seconds, no_ack=True),
        _stream(names.names, None, _NAMES_AT_MOST_BYTES, sources=[copied], max_msgs_per_subject=_NAMES_EACH_AT_MOST),
        _stream(names.findings, [names.every_finding], _FINDINGS_AT_MOST_BYTES, max_age=7 * _DAY_S),
        _stream(names.fabric, [names.every_fabric], _FABRIC_AT_MOST_BYTES),
        _bucket(names.jobs, max_bytes=_JOBS_AT_MOST_BYTES),
        _bucket(
            names.leases,
            max_bytes=_LEASES_AT_MOST_BYTES,
            max_msgs=BUS_MESSAGE.names,
            max_msg_size=BUS_VALUE.bytes,
        ),
    ):
        await _make(bus, config)


async def make_state(bus: Bus) -> None:
    """Make what masters alone use: their state, and the lease of the one that leads. Raises one of FAILURES."""
    for bucket in (bus.subjects.state, bus.subjects.leader):
        await _make(bus, _bucket(bucket))


async def _make(bus: Bus, config: api.StreamConfig) -> None:
    try:
        await bus.js.add_stream(config)
    except BadRequestError:
        await bus.js.update_stream(config)


def _stream(name: str, subjects: list[str] | None, size_bytes: int, **limits: object) -> api.StreamConfig:
    """Where it is full the oldest message goes; a publisher is never refused."""
    return api.StreamConfig(
        name=name,
        subjects=subjects,
        max_bytes=size_bytes,
        discard=api.DiscardPolicy.OLD,
        storage=api.StorageType.FILE,
        duplicate_window=0.1,
        **limits,  # type: ignore[arg-type]
    )


def _bucket(bucket: str, **limits: object) -> api.StreamConfig:
    """A bucket of the key-value store: one value a key; it refuses what does not fit.

    Unlike where clients of NATS make one, no message in it removes others (`allow_rollup_hdrs`).
    """
    return api.StreamConfig(
        name=bucket_stream(bucket),
        subjects=[f"$KV.{bucket}.>"],
        max_msgs_per_subject=1,
        deny_delete=True,
        discard=api.DiscardPolicy.NEW,
        storage=api.StorageType.FILE,
        duplicate_window=0.1,
        **limits,  # type: ignore[arg-type]
    )
