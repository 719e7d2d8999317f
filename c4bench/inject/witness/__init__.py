"""Witnesses: they measure the target by other means than the driver used, and so prove that the fault took effect.

A fault that its witness does not see makes the scenario inconclusive, not passed.
"""
