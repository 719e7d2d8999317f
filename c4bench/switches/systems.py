"""The systems of switches that c4bench can change without being installed there, by the inventory's name for them."""

from collections.abc import Mapping

from c4bench.switches import linux, sonic
from c4bench.switches.system import System

SYSTEMS: Mapping[str, System] = {system.name: system for system in (sonic.SYSTEM, linux.SYSTEM)}
