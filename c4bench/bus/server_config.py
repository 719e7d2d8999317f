"""The configuration of nats-server: TLS, who may do what, and how much JetStream may keep.

A client is who its certificate says, and may do what its role needs: an agent publish the windows of its own host, a
detector read telemetry and publish findings. There is no other way in. nats-server reads no revocation lists: what is
not listed here has no rights, so a host that is revoked is taken out by writing the configuration again.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from c4bench.bus.subjects import Subjects, bucket_key, bucket_stream
from c4bench.wire.channel import MESSAGE_BYTES_MAX
from c4bench.wire.trust import Role

_INBOX = "_INBOX.>"


class Store(NamedTuple):
    """Where streams are kept, and how much they may take in all."""

    folder: Path
    at_most_bytes: int


def server_config(
    trust: Path, store: Store, listen: str, clusters: Collection[Subjects], hosts: Collection[str]
) -> str:
    """The configuration, in JSON, which nats-server reads too: `nats-server --config FILE`."""
    users = [_agent(host, clusters) for host in hosts] + [_detector(clusters), _master()]
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
        "authorization": {"users": users},
    }
    return json.dumps(configuration, indent=1) + "\n"


def _user(name: str, publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"user": name, "permissions": {"publish": publish, "subscribe": subscribe}}


def _agent(host: str, clusters: Collection[Subjects]) -> dict[str, Any]:
    return _user(host, [subject for cluster in clusters for subject in cluster.windows_of(host)], [])


def _detector(clusters: Collection[Subjects]) -> dict[str, Any]:
    publish = ["$JS.FC.>"]
    for cluster in clusters:
        buckets = bucket_stream(cluster.jobs), bucket_stream(cluster.leases)
        for stream in (cluster.telemetry, cluster.names, cluster.findings, cluster.fabric, *buckets):
            publish += [
                f"$JS.API.STREAM.INFO.{stream}",
                f"$JS.API.STREAM.MSG.GET.{stream}",
                f"$JS.API.CONSUMER.*.{stream}",
                f"$JS.API.CONSUMER.*.{stream}.>",
            ]
        publish += [bucket_key(cluster.leases, ">"), f"$JS.API.STREAM.PURGE.{bucket_stream(cluster.leases)}"]
        publish += [cluster.every_finding, cluster.every_traffic]
    return _user(Role.DETECTOR, publish, [_INBOX])


def _master() -> dict[str, Any]:
    return _user(Role.BUS_MASTER, [">"], [_INBOX])
