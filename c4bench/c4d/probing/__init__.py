"""Probing: probe flows that tell suspects apart, sweeps of all NICs, suspects before a run."""
