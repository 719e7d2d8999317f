"""The master's pages for programs: its health as JSON (`/health`) and as metrics (`/metrics`), `/healthz`, `/readyz`.

All are GET requests on the port that agents connect to, so whoever asks must show a certificate.
"""

from collections.abc import Callable
from http import HTTPStatus

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Response

from c4bench.control.pages.health import Health

_JSON = "application/json"
_TEXT = "text/plain"
_NO_METRICS = b"prometheus-client is not installed here: pip install prometheus-client\n"


def page(path: str, health: Callable[[], Health], unready: Callable[[], str]) -> Response | None:
    """The answer to a GET request; None if the path is the websocket's. `unready` says why it is not ready, or ""."""
    match path:
        case "/healthz":
            return _response(HTTPStatus.OK, _TEXT, b"ok\n")
        case "/readyz":
            reason = unready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            return _response(status, _TEXT, f"{reason or 'ok'}\n".encode())
        case "/health":
            return _response(HTTPStatus.OK, _JSON, msgspec.json.format(msgspec.json.encode(health()), indent=2) + b"\n")
        case "/metrics":
            return _metrics(health)
        case "/":
            return None
        case _:
            return _response(HTTPStatus.NOT_FOUND, _TEXT, b"there are /health, /metrics, /healthz and /readyz\n")


def _metrics(health: Callable[[], Health]) -> Response:
    try:
        # The Prometheus library takes long to load, is an extra, and few masters are asked for metrics.
        from c4bench.control.pages import metrics  # noqa: PLC0415
    except ImportError:
        return _response(HTTPStatus.NOT_IMPLEMENTED, _TEXT, _NO_METRICS)
    return _response(HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.render(health()))


def refusal(reason: str) -> Response:
    """The answer to any request of a peer that may not connect."""
    return _response(HTTPStatus.FORBIDDEN, _TEXT, f"{reason}\n".encode())


def _response(status: HTTPStatus, kind: str, body: bytes) -> Response:
    headers = Headers([("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")])
    return Response(status.value, status.phrase, headers, body)
