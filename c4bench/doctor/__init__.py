"""Checks of what hosts can do, before anything is installed or run on them."""

from c4bench.doctor.capabilities import Report, State
from c4bench.doctor.hosts import look_at

__all__ = ["Report", "State", "look_at"]
