"""Reads, judges and writes what other tools write about collectives, within fixed bounds. docs/evidence.md."""
