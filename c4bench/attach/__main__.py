"""`python -m c4bench.attach`: the variables by which programs on this host are attached, as JSON."""

import json
import sys

from c4bench.attach import build
from c4bench.attach.environment import variables
from c4bench.errors import C4Error
from c4bench.foreign_text import one_line


def main() -> int:
    """Print them; returns the exit code."""
    try:
        found = variables(build.libraries(), build.profiler(), {})
    except C4Error as error:
        sys.stderr.write(f"c4bench: {one_line(error)}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
