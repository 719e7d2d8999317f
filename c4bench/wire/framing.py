"""Length-prefixed framing of messages on a stream; all that ranks and their spawner need of the protocol."""

LENGTH_BYTES = 4


def frame(message: bytes) -> bytes:
    """`message` as it stands on a stream."""
    return len(message).to_bytes(LENGTH_BYTES) + message
