"""Whole configurations of switches: CONFIG_DB of SONiC, NVUE's tree, EOS's running configuration."""

import re
from collections.abc import Callable, Iterator

from c4bench.doctor.facts import Advice, Fact
from c4bench.doctor.outputs.layout import About
from c4bench.errors import UnhealthyError
from c4bench.switches import eos, nvue, sonic
from c4bench.switches.facts import SwitchFacts

SONIC = re.compile(r'"PORT_QOS_MAP"\s*:|"DEVICE_METADATA"\s*:')
NVUE = re.compile(r'"nvue-api-version"\s*:')
EOS = re.compile(r'^! device: .*\bEOS\b|"cmds"\s*:\s*\{', re.MULTILINE)


def sonic_config(text: str, _: About) -> Iterator[Fact]:
    """CONFIG_DB, as `sonic-cfggen -d --print-data` and `show runningconfiguration all` print it."""
    yield _read("CONFIG_DB", sonic.configured, text)


def nvue_config(text: str, _: About) -> Iterator[Fact]:
    """`nv config show -o json`."""
    yield _read("nv config show", nvue.configured, text)


def eos_config(text: str, _: About) -> Iterator[Fact]:
    """`show running-config`, also with `| json`."""
    yield _read("show running-config", eos.configured, text)


def _read(name: str, read: Callable[[str], SwitchFacts], text: str) -> Fact:
    """The facts, or why there are none."""
    try:
        return read(text)
    except UnhealthyError as error:
        return Advice(name, "", str(error), serious=True)
