"""What scenarios of several areas ask of the fabric."""

import json
from typing import NamedTuple

import pytest

from c4bench import remote

OPTIONAL = {"hypothesis"}  # packages that only some scenarios need


class Ports(NamedTuple):
    """The switches' ports between switches, towards hosts, and in ECMP groups.

    `addresses` are those at both ends of each port, and each switch's own; `leading` is the port that sends to an
    address; `nics` are those of each host.
    """

    across: list[str]
    towards: list[str]
    shared: list[str]
    addresses: dict[str, frozenset[str]]
    leading: dict[str, str]
    nics: dict[str, list[str]]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip modules that import a package which is not installed."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name.partition(".")[0] in OPTIONAL:
        reason = f"Skipped: no-{error.name}: run pip install {error.name}"
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, reason)
    return report


@pytest.fixture(scope="session")
def ports(inventory, hosts):
    """Every port of every switch, by whose address is at its other end."""
    ours = {nic.address for host in hosts for nic in host.nics}
    found = Ports([], [], [], {}, {}, {host.name: [nic.name for nic in host.nics] for host in hosts})
    for switch in inventory.switches:
        access = inventory.access[switch]
        inside = ["nsenter", f"--net={access.netns}"] if access.netns else []
        with remote.connect(switch, access) as connection:
            asked = (["ip", "-json", what] for what in ("address", "neighbour", "route"))
            addresses, neighbours, routes = (
                json.loads(connection.run([*inside, *words], timeout_s=60.0).stdout) for words in asked
            )
        own = {link["ifname"]: {a["local"] for a in link["addr_info"]} for link in addresses}
        found.addresses[switch] = frozenset().union(*own.values())
        found.shared.extend({f"{switch}/{hop['dev']}" for route in routes for hop in route.get("nexthops", ())})
        for neighbour in neighbours:
            if "." not in neighbour["dst"]:
                continue
            name = f"{switch}/{neighbour['dev']}"
            (found.towards if neighbour["dst"] in ours else found.across).append(name)
            found.addresses[name] = frozenset(own[neighbour["dev"]] | {neighbour["dst"]})
            found.leading[neighbour["dst"]] = name
    return found._replace(across=sorted(found.across), towards=sorted(found.towards), shared=sorted(found.shared))
