"""Hangs: operations that stand still, and processes that ended."""
