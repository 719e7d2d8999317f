"""What hosts can and cannot do, looked at before anything is put on them or asked of them."""

from c4bench.doctor.capabilities import Report, State
from c4bench.doctor.hosts import look_at

__all__ = ["Report", "State", "look_at"]
