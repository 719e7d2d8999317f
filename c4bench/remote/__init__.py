"""Run commands on a host, over SSH or locally. The only importer of fabric."""

from c4bench.remote.connect import connect
from c4bench.remote.protocol import BARE_PYTHON, Completed, Connection, Session

__all__ = ["BARE_PYTHON", "Completed", "Connection", "Session", "connect"]
