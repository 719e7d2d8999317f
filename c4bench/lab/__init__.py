"""The embedded lab: SoftRoCE hosts and a leaf-spine fabric inside a user-mode Linux kernel, in virtual time.

`machine` runs on the user's machine: it builds, boots and watches the kernel, and passes on output and exit code.
`guest` runs inside the booted kernel: mounts, fabric, hosts. Both use `topology`. The rest of c4bench sees a lab as an
inventory of hosts that are reached over SSH.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that scripts call as well: `c4bench.lab()` is `c4bench.script.lab()`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  (as that has)
        """Run the script in a new lab."""
        return import_module("c4bench.script").lab(*arguments, **options)


sys.modules[__name__].__class__ = _Package
