"""Paths: what learns them, plans them, and reads the switches' counters."""
