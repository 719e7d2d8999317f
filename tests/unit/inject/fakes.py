"""What the injector's tests share: requests, and hosts that exist only on paper."""

import json

from c4bench.inject.interfaces import InterfaceTarget
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, Value

NIC = Nic("h5", 0, "h5r0", "h5n0", "10.1.1.1", 10e9)
ADDRESS = json.dumps(
    [
        {
            "ifname": "h5n0",
            "mtu": 4200,
            "addr_info": [
                {"family": "inet", "scope": "global", "local": "10.1.1.1", "prefixlen": 24, "label": "h5n0"},
                {"family": "inet6", "scope": "global", "local": "fd00::5", "prefixlen": 64},
            ],
        }
    ]
)
TBF = (
    '[{"kind":"tbf","handle":"8019:","root":true,"refcnt":2,"options":{"rate":1250000000,"burst":16250,'
    '"burst_raw":"cc","lat":6697,"limit":8388608}}]'
)
NOQUEUE = '[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]'
ROUTES = (
    "default via 10.1.1.254 dev h5n0 table 1101\n"
    "10.1.1.0/24 dev h5n0 proto kernel scope link src 10.1.1.1\n"
    "local 10.1.1.1 dev h5n0 table local proto kernel scope host src 10.1.1.1\n"
)


def target(qdisc: str = TBF, **sections: str) -> InterfaceTarget:
    """A NIC as a host might list it."""
    found = {"address": ADDRESS, "qdisc": qdisc, "route": ROUTES, "multipath": "", "route6": ""}
    neighbour = "10.1.1.254 lladdr 02:c4:01:01:00:fe PERMANENT \n"
    return InterfaceTarget(NIC, 7, found | {"neighbour": neighbour} | sections)


def nic_request(fault: str, **parameters: Value) -> FaultRequest:
    """A request for NIC h5/0."""
    return FaultRequest(fault, "h5", NIC, parameters=parameters)


def rank_request(fault: str, **parameters: Value) -> FaultRequest:
    """A request for rank 2 of job train."""
    return FaultRequest(fault, "h5", job="train", rank=2, parameters=parameters)
