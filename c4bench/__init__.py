"""c4bench: prove that faults on an RDMA fabric are found, named and routed around, on hosts or in an embedded lab."""

__version__ = "0.1.0"
