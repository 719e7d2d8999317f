"""Makes and grades the project itself; no part of the package that users install."""
