"""Exclusive use of hosts: a lock on each host, and draining in the job scheduler."""

from c4bench.reserve.reservation import Reservation, Scheduler, drained, scheduler

__all__ = ["Reservation", "Scheduler", "drained", "scheduler"]
