"""Asks the RAS port of a running NCCL process for its report; by default NCCL listens on localhost:28028."""

import socket

import msgspec

from c4bench.budget import RAS, Account, OverBudgetError
from c4bench.evidence.limits import UnreadableError

PORT = 28_028
_JSON = b"SET FORMAT json\nVERBOSE STATUS\n"
_TEXT = b"VERBOSE STATUS\n"
_PIECE = 1 << 16


def address(place: str) -> tuple[str, int]:
    """Host and port of `HOST` or `HOST:PORT`. Raises UnreadableError."""
    host, _, port = place.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)):
        raise UnreadableError("give HOST or HOST:PORT")
    return host, int(port) if port else PORT


def query(host: str, port: int = PORT, timeout_s: float = RAS.seconds) -> bytes:
    """The report, as JSON where NCCL can write that (2.28.7), else as text; both together within `timeout_s`.

    A refused connection is normal: no process of NCCL runs there, or it has not opened a communicator yet. Raises
    UnreadableError.
    """
    account = Account("the report", msgspec.structs.replace(RAS, seconds=timeout_s))
    answer = _ask(host, port, timeout_s, _JSON, account)
    report = answer[answer.find(b"{") :] if b"{" in answer else b""
    return report or _ask(host, port, timeout_s, _TEXT, account)


def _ask(host: str, port: int, timeout_s: float, command: bytes, account: Account) -> bytes:
    pieces = bytearray()
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(command)
            while piece := connection.recv(_PIECE):
                account.spend(bytes=len(piece))
                account.check_time()
                pieces += piece
    except ConnectionRefusedError:
        raise UnreadableError("nobody listens; no NCCL process with RAS runs there") from None
    except (ConnectionResetError, TimeoutError) as error:
        if not pieces:
            raise UnreadableError(f"no report came: {error or 'timed out'}") from None
    except OverBudgetError as error:
        raise UnreadableError(f"{error}; is it NCCL that listens there?") from None
    except OSError as error:
        raise UnreadableError(f"{error.strerror or error}; give HOST or HOST:PORT") from None
    return bytes(pieces)
