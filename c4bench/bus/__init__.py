"""NATS JetStream between agents, detectors and masters: subjects, leases, findings, and the master's state."""

import importlib.util

from c4bench.errors import UsageError

if importlib.util.find_spec("nats") is None:
    raise UsageError("a bus needs nats-py, which is not installed: pip install nats-py")
