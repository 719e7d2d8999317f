"""Which agents are connected to the master, and which are missing."""
