"""One user of a set of hosts at a time: on the hosts themselves, and towards whatever schedules jobs on them."""

from c4bench.reserve.reservation import Reservation
from c4bench.reserve.schedulers import Scheduler, drained, scheduler

__all__ = ["Reservation", "Scheduler", "drained", "scheduler"]
