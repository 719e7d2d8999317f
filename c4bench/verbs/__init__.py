"""RDMA verbs: devices, connections, path control, events, counters, probes. The only importer of pyverbs."""
