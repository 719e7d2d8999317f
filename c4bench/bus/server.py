"""What nats-server keeps and allows: its configuration, and the streams and buckets that a cluster's master makes.

The configuration: TLS, who may do what, and how much JetStream may keep. A client is who its certificate says, and may
do what its role needs: an agent publish the windows of its own host, a detector read telemetry and publish findings.
There is no other way in. nats-server reads no revocation lists: what is not listed here has no rights, so a host that
is revoked is taken out by writing the configuration again.

Whoever may ask JetStream for something says on which subject the answer comes, and nats-server does not ask whether it
may publish there. So masters keep their state in an account of their own, which no subject of the other account
reaches, and the stream that agents publish to does not answer: nats-server sends an acknowledgement wherever the
publisher says, also to subjects that the publisher may not use, such as the request to empty a stream.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from nats.js import api
from nats.js.errors import BadRequestError

from c4bench.budget import BUS_MESSAGE, BUS_VALUE
from c4bench.bus.connection import Bus
from c4bench.bus.subjects import Subjects, bucket_key, bucket_stream, inbox
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.trust import Role

_DAY_S = 86_400.0
# Agents send all names again after 256 changes.
_NAMES_EACH_AT_MOST = 1024
_FINDINGS_AT_MOST_BYTES, _FABRIC_AT_MOST_BYTES, _NAMES_AT_MOST_BYTES = 64 << 20, 256 << 20, 1 << 30
_JOBS_AT_MOST_BYTES, _LEASES_AT_MOST_BYTES = 128 << 20, 64 << 20


class BusStore(NamedTuple):
    """Where streams are kept, and how much they may take in all."""

    folder: Path
    at_most_bytes: int


class Rights(NamedTuple):
    """The subjects that a client may publish and subscribe to; no others."""

    publish: list[str]
    subscribe: list[str]


def server_config(
    trust: Path, store: BusStore, listen: str, clusters: Collection[Subjects], hosts: Collection[str]
) -> str:
    """The configuration, in JSON, which nats-server reads too: `nats-server --config FILE`."""
    shared = [_user(host, agent_rights(host, clusters)) for host in hosts]
    shared += [_user(Role.DETECTOR, detector_rights(clusters)), _user(Role.BUS_MASTER, master_rights(clusters))]
    configuration = {
        "listen": listen,
        "server_name": "c4bench-bus",
        "max_payload": MESSAGE_BYTES_MAX,
        "max_pending": 8 * MESSAGE_BYTES_MAX,
        "ping_interval": "2s",
        "ping_max": 2,
        "tls": {
            "ca_file": str(trust / "ca.pem"),
            "cert_file": str(trust / f"{Role.BUS}.pem"),
            "key_file": str(trust / f"{Role.BUS}.key"),
            "verify_and_map": True,
            "timeout": 5,
        },
        "jetstream": {
            "store_dir": str(store.folder),
            "max_file_store": store.at_most_bytes,
            "max_memory_store": 64 << 20,
        },
        "accounts": {
            "shared": {"jetstream": "enabled", "users": shared},
            "masters": {"jetstream": "enabled", "users": [_user(Role.BUS_LEADER, leader_rights(clusters))]},
        },
    }
    return json.dumps(configuration, indent=1) + "\n"


def agent_rights(host: str, clusters: Collection[Subjects]) -> Rights:
    """An agent publishes the windows of its own host, and reads nothing."""
    return Rights([subject for cluster in clusters for subject in cluster.windows_of(host)], [])


def detector_rights(clusters: Collection[Subjects]) -> Rights:
    """A detector reads what agents, masters and detectors share, and writes leases, findings and traffic."""
    publish: list[str] = []
    for cluster in clusters:
        for stream in _shared_streams(cluster):
            publish += _read(stream)
        publish += [bucket_key(cluster.leases, "job.*"), bucket_key(cluster.leases, "detector.*")]
        publish += [f"$JS.API.STREAM.PURGE.{bucket_stream(cluster.leases)}"]
        publish += [cluster.every_finding, cluster.every_traffic]
    return Rights(publish, _answers(Role.DETECTOR))


def master_rights(clusters: Collection[Subjects]) -> Rights:
    """A master makes, reads and empties the shared streams, and writes jobs, reports and facts about the fabric."""
    publish: list[str] = []
    for cluster in clusters:
        for stream in _shared_streams(cluster):
            publish += _own(stream)
        publish += [bucket_key(cluster.jobs, "*"), cluster.every_report]
        publish += [cluster.shared(kind, "master") for kind in ("paths", "rates", "missing")]
    return Rights(publish, _answers(Role.BUS_MASTER))


def leader_rights(clusters: Collection[Subjects]) -> Rights:
    """The master that leads has its state, in its own account."""
    publish: list[str] = []
    for cluster in clusters:
        for bucket in (cluster.state, cluster.leader):
            publish += [*_own(bucket_stream(bucket)), bucket_key(bucket, ">")]
    return Rights(publish, _answers(Role.BUS_LEADER))


def _shared_streams(cluster: Subjects) -> tuple[str, ...]:
    buckets = bucket_stream(cluster.jobs), bucket_stream(cluster.leases)
    return (cluster.telemetry, cluster.names, cluster.findings, cluster.fabric, *buckets)


def _read(stream: str) -> list[str]:
    """Requests for a stream's messages, and answers to the server's flow control."""
    return [f"$JS.API.STREAM.MSG.GET.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}", f"$JS.FC.{stream}.>"]


def _own(stream: str) -> list[str]:
    """Requests of whoever makes a stream."""
    return [*(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE", "INFO", "PURGE")), *_read(stream)]


def _answers(role: Role) -> list[str]:
    return [f"{inbox(role)}.>"]


def _user(name: str, rights: Rights) -> dict[str, Any]:
    permissions = {"publish": _only(rights.publish), "subscribe": _only(rights.subscribe)}
    return {"user": name, "permissions": permissions}


def _only(subjects: list[str]) -> dict[str, list[str]]:
    """Permission for these subjects. To nats-server, an empty list of what is allowed allows everything."""
    return {"allow": subjects} if subjects else {"deny": [">"]}


class StreamLimits(msgspec.Struct, frozen=True):
    """How much of the jobs' telemetry the bus holds: whichever is reached first, the oldest goes."""

    seconds: float = 120.0
    size_bytes: int = 1 << 30


async def make_streams(bus: Bus, limits: StreamLimits) -> None:
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
