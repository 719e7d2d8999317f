"""Connections that survive the loss of NICs: every NIC backs up every other one (R2CCL, arXiv 2512.25059)."""
