"""How messages stand on a stream: each behind its length. Ranks and their spawner need no more of the wire."""

LENGTH_BYTES = 4


def frame(message: bytes) -> bytes:
    """`message` as it stands on a stream."""
    return len(message).to_bytes(LENGTH_BYTES) + message
