"""Thresholds of the hang stage, in cadences: the time between two windows of a host."""

# Two windows: less may be an offset between two hosts' windows.
DISTINCT_CADENCES = 2.0
# Windows are whole cadences apart, except for clock offsets: thresholds lie halfway between two windows.
BETWEEN_CADENCES = 0.5
# A window reports what happened up to one cadence before, and another may pass until the next one.
REPORTED_CADENCES = 2.0
