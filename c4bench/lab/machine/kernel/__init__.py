"""The lab's kernel: built once on the user's machine, from Linux' source, into a cache.

This repository has only a patch of the kernel (kernel.patch). The source (GPL-2.0) comes from the distribution, and the
built kernel runs as a separate program.
"""

from c4bench.lab.machine.kernel.cache import Kernel, cache_root, find, require

__all__ = ["Kernel", "cache_root", "find", "require"]
