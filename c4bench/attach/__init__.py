"""Programs that we did not write: a preloaded library that watches and steers them, and its Python side."""
