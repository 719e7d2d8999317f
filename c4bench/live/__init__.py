"""The live page: a read-only view of the master in a browser, over TLS, for those with a certificate or a token."""
