"""Mutual TLS 1.3 with certificates of one authority (made by `c4bench.deploy.authority`).

The authority's file also holds its revocation list; revoked peers are refused. What a peer may do follows from the role
that its certificate states, a URI among its alternative names (RFC 5280, section 4.2.1.6), and never from its name.
"""

import re
import ssl
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from c4bench.errors import UnhealthyError, UsageError

# What to do about a certificate of an earlier version, or one that ends soon.
RENEW = "run c4bench prepare and deploy again"
_ROLE = "urn:c4bench:role:"
# RFC 1123, section 2.1: labels of letters, digits and hyphens, apart by dots.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_HOST_AT_MOST = 64  # as a certificate's common name (RFC 5280, appendix A.1)


class Role(StrEnum):
    """What a certificate permits."""

    MASTER = "master"  # serve
    AGENT = "agent"  # speak for the host that the certificate names, and for the ranks there
    OPERATOR = "operator"  # start and stop jobs, and receive every event
    OBSERVER = "observer"  # only receive events: watchers, Prometheus
    BUS = "bus"  # serve as nats-server
    DETECTOR = "detector"  # on the bus: read telemetry, publish findings
    BUS_MASTER = "bus-master"  # on the bus: make its streams, enter jobs, read findings
    BUS_LEADER = "bus-leader"  # on the bus: lead, and keep the master's state

    @property
    def uri(self) -> str:
        """The role as a certificate states it."""
        return f"{_ROLE}{self.value}"


CLIENTS = (Role.AGENT, Role.OPERATOR, Role.OBSERVER)
# Files of the authority's folder are called so, which no host may be.
RESERVED = (*(role for role in Role if role is not Role.AGENT), "ca")


class Identity(NamedTuple):
    """Whom a verified certificate is about."""

    name: str
    role: Role


def check_host(name: str) -> None:
    """Raises UsageError for what is no name of a host (RFC 1123), or is reserved: it becomes a file and an identity."""
    if name.lower() in RESERVED:
        raise UsageError(f"a host cannot be called {name!r}: that is a role's name; rename it in the inventory")
    if len(name) > _HOST_AT_MOST or not _HOST.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a host (RFC 1123): use up to 64 letters, digits, hyphens and dots"
        )


def server_context(ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 for the master: a peer without a certificate of this authority does not get in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, ca, certificate, key)


def client_context(ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 for the master's clients: speaks only to a server with a server's certificate that names it `master`."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca, certificate, key)


def _load(context: ssl.SSLContext, ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(ca)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.load_cert_chain(certificate, key)
    return context


def peer_identity(tls: ssl.SSLObject, *permitted: Role) -> Identity:
    """The name and the role in the peer's verified certificate.

    Raises UnhealthyError, which says what to do, unless the certificate states one role that is `permitted`.
    """
    certificate: Any = tls.getpeercert() or {}
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    name = next((str(value) for key, value in subject if key == "commonName"), "")
    stated = [value for key, value in certificate.get("subjectAltName", ()) if key == "URI" and value.startswith(_ROLE)]
    role = next((role for role in Role if [role.uri] == stated), None)
    if role is None:
        found = f"states {' and '.join(map(repr, stated))}" if stated else "states no role"
        raise UnhealthyError(f"the certificate of {name!r} {found}, where one role is needed; {RENEW}")
    if role not in permitted:
        wanted = " or ".join(permitted)
        raise UnhealthyError(f"the certificate of {name!r} is for the role {role}; use one for the role {wanted} here")
    return Identity(name, role)
