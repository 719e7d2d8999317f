"""What is known of the fabric: paths, their age, the state of links, cables, and the traffic of others."""
