"""`c4bench bench`: the cost and throughput of the data plane, the agent and the lab itself."""
