"""How a connection's load is divided among its QPs: planned, then corrected by measured throughput."""
