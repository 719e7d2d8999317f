"""The lab's kernel: built once on the user's machine, from Linux' source, into a cache.

Of the kernel nothing is in this repository but what is changed in it (kernel.patch): the source (GPL-2.0) comes from
the distribution, and what is built of it runs as a separate program.
"""

from c4bench.lab.machine.kernel.cache import Kernel, cache_root, find, require

__all__ = ["Kernel", "cache_root", "find", "require"]
