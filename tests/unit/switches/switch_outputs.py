"""What switches print: recorded outputs, by the names of the system's reads."""

from pathlib import Path

PRINTED = Path(__file__).parent / "printed"


def sonic(**changed):
    """What a SONiC leaf with two uplinks prints; None leaves an output out."""
    outputs = {
        "configuration": (PRINTED / "sonic_configuration.json").read_text(),
        "status": (PRINTED / "sonic_status.txt").read_text(),
        "acl": (PRINTED / "sonic_acl.txt").read_text(),
        "tools": "/usr/bin/sonic-db-cli\n/usr/bin/redis-cli\n",
        "neighbours": "",
        "version": "---\nbuild_version: 'SONiC.202311.1-abc'\ndebian_version: '11.9'\n",
    }
    return {name: text for name, text in (outputs | changed).items() if text is not None}


def nvue(**changed):
    """What a Cumulus leaf with two uplinks prints; None leaves an output out."""
    outputs = {
        "configuration": (PRINTED / "nvue_configuration.json").read_text(),
        "interfaces": (PRINTED / "nvue_interfaces.json").read_text(),
        "version": 'DISTRIB_ID="Cumulus Linux"\nDISTRIB_RELEASE=5.9.1\n',
    }
    return {name: text for name, text in (outputs | changed).items() if text is not None}


def eos(**changed):
    """What an EOS leaf with an uplink prints; None leaves an output out."""
    outputs = {
        "configuration": (PRINTED / "eos_configuration.json").read_text(),
        "interfaces": (PRINTED / "eos_interfaces.json").read_text(),
        "version": '{"mfgName": "Arista", "version": "4.32.1F"}',
    }
    return {name: text for name, text in (outputs | changed).items() if text is not None}
