"""Sessions of pytest as somebody at a shell has them."""

import os
import subprocess
import sys


def start_pytest(folder, inventory, *words):
    """Begin one in `folder`, in a process group of its own, so that it can be killed with all it has started."""
    argv = [sys.executable, "-m", "pytest", f"--hosts={inventory}", "-rs", "-p", "no:cacheprovider", *words]
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=os.environ | {"COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
