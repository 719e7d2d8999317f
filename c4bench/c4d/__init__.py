"""C4D, the detector (arXiv 2406.04594): telemetry and times in, diagnoses out. It does no I/O and reads no clock."""
