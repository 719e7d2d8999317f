"""Mutual TLS 1.3 with certificates of one authority (made by `c4bench.deploy.authority`).

The authority's file also holds its revocation list; revoked peers are refused.
"""

import ssl
from pathlib import Path
from typing import Any

MASTER = "master"
OPERATOR = "operator"  # may start and stop jobs, and receive every event
OBSERVER = "observer"  # may only receive events: watchers, Prometheus


def server_context(ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 for the master: a peer without a certificate of this authority does not get in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, ca, certificate, key)


def client_context(ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 for an agent: speaks only to a server whose certificate names it `master`."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca, certificate, key)


def _load(context: ssl.SSLContext, ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(ca)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.load_cert_chain(certificate, key)
    return context


def peer_name(tls: ssl.SSLObject) -> str:
    """The name in the peer's verified certificate."""
    subject: Any = (tls.getpeercert() or {}).get("subject", ())
    return next((str(value) for part in subject for key, value in part if key == "commonName"), "")
