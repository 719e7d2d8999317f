"""The lab's inner half: what runs as root inside the user-mode kernel."""
