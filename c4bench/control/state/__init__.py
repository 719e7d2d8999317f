"""What the master saves and continues from: jobs, hosts, events, and the archive."""
