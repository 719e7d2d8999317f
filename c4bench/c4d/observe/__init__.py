"""What C4D knows: records by job, rank, connection and NIC, and the delay matrix of each span. It judges nothing."""
