"""Flow-level simulator of jobs: the same telemetry as real ranks, from a seed, without hosts."""
