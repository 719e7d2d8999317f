"""Connections that outlive a NIC: every NIC's QP is every other's backup (after R2CCL, arXiv 2512.25059)."""
