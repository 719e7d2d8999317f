"""The fault injector: applies a fault on a host, proves that it took effect, and restores the host's state.

What runs on the host (`python -m c4bench.inject`) uses no numpy and no event loop; `controller` is the remote side.
"""
