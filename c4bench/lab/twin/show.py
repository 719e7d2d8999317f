"""`show` and the programs behind it, with the columns of SONiC's Command-Reference.md."""

import subprocess

from c4bench.lab.twin import factory
from c4bench.lab.twin.commands import Call, command
from c4bench.lab.twin.tables import table

_MBPS_IN_G = 1000


@command("show version")
def version(call: Call) -> None:
    """`show version`."""
    call.write(
        f"\nSONiC Software Version: SONiC.{factory.VERSION}\nSONiC OS Version: 12\nDistribution: Debian 12\n"
        f"Kernel: {_said('uname', '-r')}\nBuild commit: none\nBuild date: none\nBuilt by: c4bench\n\n"
        f"Platform: {factory.PLATFORM}\nHwSKU: {factory.SKU}\nASIC: vs\nASIC Count: 1\n"
        f"Serial Number: {call.layout.name}\nModel Number: N/A\nHardware Revision: N/A\n"
        f"Uptime: {_said('uptime')}\nDate: {_said('date')}\n\nDocker images:\n"
        "REPOSITORY    TAG    IMAGE ID    SIZE"
    )


def _said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


@command("show interfaces status", "show interface status", "intfutil -c status")
def interfaces_status(call: Call) -> None:
    """`show interfaces status [NAMES]`."""
    asked = call.parse("[NAMES]")
    rows = []
    for port in call.ports(asked.get("NAMES", "")):
        own = call.config.row(f"PORT|{port.name}")
        oper = call.database("APPL_DB").row(f"PORT_TABLE:{port.name}").get("oper_status", "down")
        rows.append(
            (
                port.name,
                own.get("lanes", "N/A"),
                _speed(own.get("speed", "N/A")),
                own.get("mtu", "N/A"),
                own.get("fec", "N/A"),
                own.get("alias", "N/A"),
                "routed",
                oper,
                own.get("admin_status", "down"),
                "N/A",
                own.get("pfc_asym", "N/A"),
            )
        )
    headings = ("Interface", "Lanes", "Speed", "MTU", "FEC", "Alias", "Vlan", "Oper", "Admin", "Type", "Asym PFC")
    call.write(table(headings, rows))


def _speed(mbps: str) -> str:
    return f"{int(mbps) // _MBPS_IN_G}G" if mbps.isdecimal() and int(mbps) % _MBPS_IN_G == 0 else f"{mbps}M"
