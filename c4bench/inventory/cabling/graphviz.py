"""Graphviz, as PTM and NVIDIA Air use it: nodes with a function, edges between nodes' ports."""

import re
from collections.abc import Iterator
from itertools import pairwise

from c4bench.errors import UsageError
from c4bench.inventory.cabling.rates import written
from c4bench.inventory.cabling.wiring import HOST, SWITCH, End, Wire, Wiring, once

RECOGNISED = re.compile(r"^[ \t]*(?:strict\s+)?(?:di)?graph\b[^{=\n]{0,200}\{", re.MULTILINE | re.IGNORECASE)
_TOKEN = re.compile(
    r"\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*"
    r'|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<edge>--|->)|(?P<word>[\w.+-]+?(?=--|->|[^\w.+-]|$))|(?P<mark>[{}\[\];,=:])'
    r"|(?P<other>.)",
    re.MULTILINE | re.DOTALL,
)
_KEYWORDS = {"graph", "digraph", "subgraph", "strict", "node", "edge"}
_SWITCH_FUNCTIONS = {
    "leaf",
    "spine",
    "tor",
    "agg",
    "core",
    "superspine",
    "super-spine",
    "exit",
    "border",
    "switch",
    "fabric",
}
_HOST_FUNCTIONS = {"host", "server", "gpu", "compute"}
_SPEED_KEYS = ("speed", "bandwidth", "rate")


def read(text: str) -> Wiring:
    """The edges and the nodes' functions. Raises UsageError with the line."""
    reader = _Reader(_tokens(text))
    reader.statements()
    functions = {name: own.get("function", own.get("role", "")).lower() for name, own in reader.nodes.items()}
    apart = {name for name, function in functions.items() if function.startswith("oob")}
    roles = {name: SWITCH for name, function in functions.items() if function in _SWITCH_FUNCTIONS}
    roles |= {name: HOST for name, function in functions.items() if function in _HOST_FUNCTIONS}
    wires = tuple(once(wire for wire in reader.wires if apart.isdisjoint(end.node for end in wire.ends)))
    notes = [f"{', '.join(sorted(apart))}: out-of-band management, left out"] if apart else []
    alone = sorted(roles.keys() - {end.node for wire in wires for end in wire.ends} - apart)
    notes += [f"{', '.join(alone)}: without cables, left out"] if alone else []
    notes += [] if any(wire.rate_bps for wire in wires) else ["the file states no speeds"]
    return Wiring("Graphviz", wires, roles, tuple(notes))


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, text, line) of every token; comments are of C and C++, and lines that begin with #."""
    found = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup or "", match[0]
        if kind == "other":
            raise UsageError(f"line {line}: {token!r} is not expected in a Graphviz file")
        if kind == "quoted":
            found.append(("word", re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL), line))
        elif kind:
            found.append((kind, token, line))
        line += token.count("\n")
    return found


class _Reader:
    """Reads statements; subgraphs group nodes only, so their braces are passed over."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens, self._at = tokens, 0
        self.nodes: dict[str, dict[str, str]] = {}
        self.wires: list[Wire] = []

    def statements(self) -> None:
        """All of them."""
        while self._at < len(self._tokens):
            kind, token, _ = self._tokens[self._at]
            if kind == "word" and token.lower() in _KEYWORDS:
                self._pass_keyword()
            elif kind == "word":
                self._statement()
            else:
                self._at += 1

    def _pass_keyword(self) -> None:
        """A heading up to its brace, or defaults of nodes and edges."""
        self._at += 1
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in {"{", "[", ";"}:
            if self._tokens[self._at][1] in _KEYWORDS or self._tokens[self._at][0] == "edge":
                return
            self._at += 1
        if self._peek() == "[":
            self._attributes()

    def _statement(self) -> None:
        ends = [self._end()]
        if self._peek() == "=":  # an attribute of the graph
            self._at += 2
            return
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "edge":
            self._at += 1
            ends.append(self._end())
        own = self._attributes() if self._peek() == "[" else {}
        if len(ends) == 1:
            self.nodes.setdefault(ends[0].node, {}).update(own)
        rate_bps = next((rate for key in _SPEED_KEYS if (rate := written(own.get(key, "")))), 0.0)
        self.wires += (Wire(a, b, rate_bps) for a, b in pairwise(ends))

    def _end(self) -> End:
        """`node` or `node:port`, with a compass point or not."""
        parts = [self._word()]
        while self._peek() == ":":
            self._at += 1
            parts.append(self._word())
        return End(parts[0], parts[1] if len(parts) > 1 else "")

    def _word(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "word":
            line = self._tokens[min(self._at, len(self._tokens) - 1)][2]
            raise UsageError(f"line {line}: a name is expected")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _peek(self) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "mark":
            return self._tokens[self._at][1]
        return ""

    def _attributes(self) -> dict[str, str]:
        """The attributes in brackets."""
        return dict(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        line = self._tokens[self._at][2]
        self._at += 1
        while self._peek() != "]":
            if self._at >= len(self._tokens):
                raise UsageError(f"line {line}: a bracket has no end; is the file cut?")
            if self._peek() in {",", ";"}:
                self._at += 1
                continue
            key = self._word()
            value = ""
            if self._peek() == "=":
                self._at += 1
                value = self._word()
            yield key, value
        self._at += 1
