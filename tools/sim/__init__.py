"""A flow-level simulator of jobs. It emits the same telemetry as real ranks, from a seed and without hosts."""
