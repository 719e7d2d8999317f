"""Decides what to do about diagnoses, from a policy and the state of the fleet. No I/O, no clock."""
