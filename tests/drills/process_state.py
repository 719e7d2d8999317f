"""The state of a process, from /proc."""

from pathlib import Path

from c4bench.agent.spawner import state_in


def process_state(pid):
    """`running`, `stopped` or `exited`."""
    try:
        return state_in(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return "exited"
