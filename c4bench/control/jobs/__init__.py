"""Jobs: what starts and ends them, and how their ranks find each other and wait for each other."""
