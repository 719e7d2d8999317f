"""The fault injector: brings a fault about on a host, proves that it took effect, and puts the host right again.

What runs on the host (`python -m c4bench.inject`) needs neither numpy nor an event loop; `controller` is the other end.
"""
