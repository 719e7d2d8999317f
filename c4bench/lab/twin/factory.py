"""The configuration that a SONiC switch of the lab starts with: ports, addresses, and QoS for one lossless class.

Tables and fields are those of SONiC's Configuration.md and of its template for QoS (`qos_config.j2`, `config qos
reload`). A DSCP belongs to the class of its three upper bits, as on NICs that trust DSCP.
"""

import os

from c4bench.lab.topology import EcnMarking
from c4bench.lab.twin.ports import Layout, SwitchPort

Config = dict[str, dict[str, dict[str, str]]]

LOSSLESS = 3
_CLASSES = 8
_DSCPS = 64
MTU_BYTES = 9100
# What a port can be set to, up to the rate of its cable.
SPEEDS_MBPS = (1000, 2500, 5000, 10_000, 20_000, 25_000, 40_000, 50_000, 100_000)
PLATFORM = "x86_64-kvm_x86_64-r0"
SKU = "c4bench-twin"
VERSION = "202411.c4bench-twin"
_MAPS = ("DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE")
QOS_TABLES = (
    *_MAPS,
    "PORT_QOS_MAP",
    "SCHEDULER",
    "WRED_PROFILE",
    "QUEUE",
    "BUFFER_POOL",
    "BUFFER_PROFILE",
    "BUFFER_PG",
)
WRED = "AZURE_LOSSLESS"


def configuration(layout: Layout, ecn: EcnMarking | None) -> Config:
    """The contents of config_db.json as the switch comes; WRED marks as `ecn` says, and with None not at all."""
    config: Config = {
        "DEVICE_METADATA": {"localhost": _metadata(layout)},
        "FEATURE": {name: {"state": "enabled", "auto_restart": "enabled"} for name in ("database", "lldp", "swss")},
        "FLEX_COUNTER_TABLE": {
            name: {"FLEX_COUNTER_STATUS": "enable", "POLL_INTERVAL": str(milliseconds)}
            for name, milliseconds in (("PORT", 1000), ("QUEUE", 10_000), ("ACL", 10_000))
        },
        "INTERFACE": {},
        "MGMT_INTERFACE": {f"eth0|{layout.address}/24": {}},
        "PORT": {port.name: _port(port) for port in layout.ports},
        "VERSIONS": {"DATABASE": {"VERSION": "version_4_0_3"}},
    }
    for port in layout.ports:
        config["INTERFACE"][port.name] = {}
        config["INTERFACE"] |= {f"{port.name}|{address}": {} for address in port.addresses}
    return config | qos(layout, ecn) | {"PFC_WD": pfc_watchdog(layout)}


def _metadata(layout: Layout) -> dict[str, str]:
    return {
        "hostname": layout.name,
        "hwsku": SKU,
        "platform": PLATFORM,
        "mac": layout.mac,
        "type": "ToRRouter" if layout.tier == 1 else "LeafRouter" if layout.tier == 2 else "SpineRouter",
        "default_pfcwd_status": "enable",
    }


def _port(port: SwitchPort) -> dict[str, str]:
    return {
        "admin_status": "up",
        "alias": port.alias,
        "index": str(port.index),
        "lanes": port.serdes,
        "mtu": str(MTU_BYTES),
        "pfc_asym": "off",
        "speed": str(port.speed_mbps),
    }


def qos(layout: Layout, ecn: EcnMarking | None) -> Config:
    """The tables that `config qos reload` writes."""
    same = {str(number): str(number) for number in range(_CLASSES)}
    groups = {number: number if int(number) == LOSSLESS else "0" for number in same}
    names = {
        "dscp_to_tc_map": "AZURE",
        "tc_to_queue_map": "AZURE",
        "tc_to_pg_map": "AZURE",
        "pfc_to_queue_map": "AZURE",
    }
    lossless = str(LOSSLESS)
    config: Config = {
        "DSCP_TO_TC_MAP": {"AZURE": {str(dscp): str(dscp // _CLASSES) for dscp in range(_DSCPS)}},
        "TC_TO_QUEUE_MAP": {"AZURE": same},
        "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": groups},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": same},
        "PORT_QOS_MAP": {
            port.name: {**names, "pfc_enable": lossless, "pfcwd_sw_enable": lossless} for port in layout.ports
        },
        "SCHEDULER": {
            "scheduler.0": {"type": "DWRR", "weight": "14"},
            "scheduler.1": {"type": "DWRR", "weight": "15"},
        },
        "BUFFER_POOL": {"ingress_lossless_pool": {"mode": "dynamic", "type": "ingress", "size": str(8 << 20)}},
        "BUFFER_PROFILE": {
            "pg_lossless_profile": {
                "pool": "ingress_lossless_pool",
                "size": "0",
                "dynamic_th": "0",
                "xoff": "200000",
                "xon": "100000",
            }
        },
        "BUFFER_PG": {f"{port.name}|{lossless}": {"profile": "pg_lossless_profile"} for port in layout.ports},
        "WRED_PROFILE": {WRED: wred(ecn)} if ecn else {},
    }
    config["QUEUE"] = {
        f"{port.name}|{number}": {"scheduler": "scheduler.1", **({"wred_profile": WRED} if ecn else {})}
        if number == LOSSLESS
        else {"scheduler": "scheduler.0"}
        for port in layout.ports
        for number in range(_CLASSES)
    }
    return config


def wred(ecn: EcnMarking) -> dict[str, str]:
    """A WRED profile that marks packets of all colours alike."""
    fields = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        fields |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(ecn.min_bytes),
            f"{colour}_max_threshold": str(ecn.max_bytes),
            f"{colour}_drop_probability": f"{100 * ecn.probability:.0f}",
        }
    return fields


def pfc_watchdog(layout: Layout) -> dict[str, dict[str, str]]:
    """The table that `pfcwd start_default` writes."""
    times = {"action": "drop", "detection_time": "200", "restoration_time": "200"}
    return {"GLOBAL": {"POLL_INTERVAL": "200"}, **{port.name: dict(times) for port in layout.ports}}


def version_file() -> str:
    """/etc/sonic/sonic_version.yml, in which SONiC's programs look their version up."""
    return (
        f"build_version: '{VERSION}'\ndebian_version: '12'\nkernel_version: '{os.uname().release}'\n"
        "asic_type: vs\nbuilt_by: c4bench\n"
    )
