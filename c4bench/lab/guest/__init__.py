"""The half of the lab that runs as root inside the user-mode kernel."""
