"""What the tools of hosts and switches print, as facts: a module for each kind of device or tool."""
