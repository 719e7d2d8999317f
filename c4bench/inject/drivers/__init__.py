"""Drivers: functions that plan a fault on one kind of hardware. They read the host and change nothing."""
