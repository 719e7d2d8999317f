"""Length-prefixed framing of messages on a stream, and bounds of their length; ranks need no more to send one."""

LENGTH_BYTES = 4
# A job of 8,000 ranks is started with a message of 2 MiB; a window of 16 ranks with 100 communicators each has 3 MiB.
MESSAGE_BYTES_MAX = 8 << 20
# What a rank asks has some kilobytes, and with addresses for a thousand peers some hundreds.
CALL_BYTES_MAX = 1 << 20


def frame(message: bytes) -> bytes:
    """`message` as it stands on a stream."""
    return len(message).to_bytes(LENGTH_BYTES) + message
