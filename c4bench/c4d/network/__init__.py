"""The network: slow transfers, lost packets, missing links."""
