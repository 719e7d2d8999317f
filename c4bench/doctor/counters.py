"""What counters of ports say: errors, discards, pauses and symbol errors are different findings. Pure.

Only what grows between two readings speaks against a cable, an optic or the sender at the other end: a counter that
stands may be of last year. Discards are packets that arrived whole and were dropped, by a rule, for an unknown VLAN, or
in congestion, and pauses ask a sender to wait: no cable does either.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from c4bench.doctor.facts import Counters, DropRule, Mark, Remark
from c4bench.foreign_text import one_line

# By port and by the name of the counter, as the tool calls it.
Counts = Mapping[str, Mapping[str, int]]
_MOST_DIGITS = 20
_LONGEST_NAME = 80
_SHOWN = 4
_NEARLY_ALL = 0.9


class Family(StrEnum):
    """What a counter counts."""

    SYMBOLS = "symbol errors"
    ERRORS = "errors"
    UNCORRECTED = "blocks that FEC could not correct"
    LOSSES = "link losses"
    MODULE = "troubles of the module"
    STORMS = "pause storms"
    DISCARDS = "discards"
    OVERRUNS = "packets that the host took too late"
    PAUSES = "pauses"
    RETRANSMISSIONS = "retransmissions"
    PCI = "troubles of the PCIe bus"
    MARKS = "congestion marks"


class _Rule(NamedTuple):
    """What the growth of a family means: its mark, and what to do. `noted`: a level is worth a line beside others."""

    mark: Mark
    advice: str
    noted: bool = True


_CABLE = "check the cable and the optics at this port, and the port at its other end"
_RULES = {
    Family.SYMBOLS: _Rule(Mark.BAD, _CABLE),
    Family.ERRORS: _Rule(Mark.BAD, "check the cable, the optics, and the port at its other end"),
    Family.UNCORRECTED: _Rule(Mark.BAD, _CABLE),
    Family.LOSSES: _Rule(Mark.BAD, "the link went down: check the cable, the optics, and whether either end restarted"),
    Family.MODULE: _Rule(Mark.BAD, "check the optic or the cable's connector, and its cooling"),
    Family.STORMS: _Rule(Mark.BAD, "the host behind the port stopped taking packets: check its NIC and its driver"),
    Family.PCI: _Rule(Mark.NOTE, "check the NIC's slot, and its PCIe width and speed"),
    Family.DISCARDS: _Rule(Mark.NOTE, "not the cable: look at rules, VLANs, buffers and PFC"),
    Family.OVERRUNS: _Rule(Mark.NOTE, "not the cable: the host is slow to take packets"),
    Family.RETRANSMISSIONS: _Rule(Mark.NOTE, "packets were lost somewhere on the way: look at discards and errors"),
    Family.PAUSES: _Rule(Mark.NOTE, "not the cable: congestion, or a receiver that is slow", noted=False),
    Family.MARKS: _Rule(Mark.NOTE, "not the cable: congestion", noted=False),
}
# Counters that say nothing of their own: they show where symbol errors come from.
_OF_PART = re.compile(r"rx_err_lane_(\d+)_phy")
# In the order of trying; names are those of drivers, of SONiC, and of InfiniBand's and Mellanox's tools.
_NAMES: tuple[tuple[Family, str], ...] = (
    (Family.SYMBOLS, r"(rx_)?(pcs_)?symbol_err(or)?(s)?(_phy)?|Symbol|rx_pcs_symbol_err(_phy)?|SymbolErrorCounter"),
    (Family.UNCORRECTED, r"FEC_UNCORR|.*fec_uncorrect\w*|.*fec_uncorr\w*|.*uncorrectable_bl\w*"),
    (Family.LOSSES, r"link_down_events(_phy)?|LinkDownedCounter|link_downed|link_down_counter"),
    (Family.MODULE, r"module_(bus_stuck|high_temp|bad_shorted)"),
    (Family.STORMS, r"tx_pause_storm_(warning|error)_events|pfc_storms_detected"),
    (Family.OVERRUNS, r"(rx_)?out_of_buffer|rx_missed_errors|rx_fifo_errors|rx_steer_missed_packets"),
    (
        Family.DISCARDS,
        r"[RT]X_(DRP|OVR)|[rt]x_(prio\d_)?discards?(_phy|_pkts)?|[rt]x_dropped(\.nic)?|rx_prio\d_buf_discard"
        r"|(In|Out)Discards|PortXmitDiscards|port_xmit_discards|VL15Dropped|(UC|MC)\d+_dropped|PG\d+_dropped",
    ),
    (
        Family.ERRORS,
        r"[RT]X_ERR|FCS|Align|(FCS|Align|Rcv|Xmit)-Err|[rt]x_(crc|fcs|frame|length|in_range_len|carrier|aborted)_err(or)?s?(_phy|_frames|\.nic)?|[rt]x_errors(_phy)?"
        r"|rx_(undersize_pkts|fragments|jabbers)_phy|rx_unsupported_op_phy|PortRcvErrors|port_rcv_errors"
        r"|(Local)?LinkIntegrityErrors|local_link_integrity_errors|effective_physical_errors"
        r"|(PortRcvRemotePhysicalErrors|port_rcv_remote_physical_errors)|ExcessiveBufferOverrunErrors|LinkErrorRecoveryCounter",
    ),
    (
        Family.PAUSES,
        r"[rt]x_(prio\d|global)_pause(_duration)?|[rt]x_pause_ctrl_phy|[RT]x_PFC\d|[RT]xPfc|PortXmitWait|port_xmit_wait",
    ),
    (
        Family.RETRANSMISSIONS,
        r"out_of_sequence|packet_seq_err|local_ack_timeout_err|implied_nak_seq_err|rnr_nak_retry_err"
        r"|roce_adp_retrans(_to)?|roce_slow_restart|req_transport_retries_exceeded|rx_icrc_encapsulated",
    ),
    (Family.PCI, r"[rt]x_pci_signal_integrity|outbound_pci_buffer_overflow"),
    (
        Family.MARKS,
        r"np_ecn_marked_roce_packets|np_cnp_sent|rp_cnp_(handled|ignored)|cc_(rx_ce|[rt]x_cnp)_pkts|[rt]x_ecn_mark"
        r"|rx_discards_ecn",
    ),
)
# A ConnectX that repeats packets slows itself down as if CNPs had come, and counts these among them.
_CNPS, _OWN_CNPS = "rp_cnp_handled", "roce_slow_restart_cnps"
_PATTERNS = tuple((family, re.compile(pattern)) for family, pattern in _NAMES)
# What only grows while a port is in use; if it shrinks, the counters were cleared.
_TRAFFIC = re.compile(r"[RT]X_OK|[rt]x_(packets|bytes)(_phy)?|Port(Rcv|Xmit)(Data|Pkts)|port_(rcv|xmit)_(data|packets)")


def count_of(written: object) -> int | None:
    """A counter as it is printed, with commas between thousands; None for what is no number."""
    digits = str(written).replace(",", "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def family_of(name: str) -> Family | None:
    """What a counter counts; None for those that no rule judges."""
    return next((family for family, pattern in _PATTERNS if pattern.fullmatch(name)), None)


def any_errors(counts: Counts) -> bool:
    """Whether a second reading could show that what speaks against a cable grows."""
    bad = {family for family, rule in _RULES.items() if rule.mark is Mark.BAD}
    return any(count and family_of(name) in bad for row in counts.values() for name, count in row.items())


def traffic(counters: Iterable[Counters]) -> int:
    """What the ports have carried: of two readings without a time, the later one has more."""
    return sum(count for one in counters for name, count in one.counts.items() if _TRAFFIC.fullmatch(name))


def judge_ports(before: Counts, after: Counts, rules: Sequence[DropRule] = ()) -> Iterator[Remark]:
    """The remarks about all ports of a device, by name; a port that `before` does not have was read once.

    `rules` are those of the same device, whose packets may be the discards of a port.
    """
    for port, now in sorted(after.items()):
        yield from judge_port(port, before.get(port), now, rules)


def judge_port(
    port: str, before: Mapping[str, int] | None, now: Mapping[str, int], rules: Sequence[DropRule] = ()
) -> Iterator[Remark]:
    """What one reading or two of a port's counters show: what grows, what only stands, what is not known."""
    before, now = None if before is None else _without_own_cnps(before), _without_own_cnps(now)
    where, cleared = _counter_name(port), before is not None and _cleared(before, now)
    then = {} if before is None or cleared else before
    if cleared:
        text = "its counters were cleared between the two readings, so what grows is not known"
        yield Remark(Mark.UNKNOWN, "cleared", where, text, "take two readings without clearing in between")
    families = {family_of(name) for name in now}
    for family, rule in _RULES.items():
        noted = rule.noted or families == {family}
        own = {name: count for name, count in now.items() if family_of(name) is family}
        risen = {name: (then[name], count) for name, count in own.items() if name in then and count > then[name]}
        if risen:
            yield _grown(where, family, rule, risen, then, now, rules)
        standing = {name: count for name, count in own.items() if count and name not in risen}
        still = {name: count for name, count in standing.items() if name in then}
        unknown = {name: count for name, count in standing.items() if name not in then}
        if noted and still and not risen:
            yield _still(where, family, rule, still, rules)
        if noted and unknown and not risen:
            yield _level(where, family, rule, unknown, rules)


def _without_own_cnps(counts: Mapping[str, int]) -> Mapping[str, int]:
    """The counts with only those CNPs that others have sent."""
    if _CNPS not in counts or _OWN_CNPS not in counts:
        return counts
    return {**counts, _CNPS: max(0, counts[_CNPS] - counts[_OWN_CNPS])}


def _cleared(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(_TRAFFIC.fullmatch(name) and now.get(name, count) < count for name, count in before.items())


def _grown(
    where: str,
    family: Family,
    rule: _Rule,
    risen: Mapping[str, tuple[int, int]],
    then: Mapping[str, int],
    now: Mapping[str, int],
    rules: Sequence[DropRule],
) -> Remark:
    changes = _some(f"{name} {was} to {count}" for name, (was, count) in risen.items())
    part = _one_part(then, now) if family is Family.SYMBOLS else ""
    reason = _rule_of(sum(count for _, count in risen.values()), rules) if family is Family.DISCARDS else ""
    return Remark(rule.mark, str(family), where, f"{family} grow, {changes}{part}{reason}", rule.advice)


def _still(where: str, family: Family, rule: _Rule, own: Mapping[str, int], rules: Sequence[DropRule]) -> Remark:
    listed = _some(f"{name} {count}" for name, count in own.items())
    reason = _rule_of(sum(own.values()), rules) if family is Family.DISCARDS else ""
    what = "not the cable" if rule.mark is Mark.NOTE else "no reason to touch the cable"
    return Remark(Mark.NOTE, str(family), where, f"{listed} in all, not growing: {what}{reason}")


def _level(where: str, family: Family, rule: _Rule, own: Mapping[str, int], rules: Sequence[DropRule]) -> Remark:
    listed = _some(f"{name} {count}" for name, count in own.items())
    if family is Family.DISCARDS:
        reason = _rule_of(sum(own.values()), rules) or "; which of them is not known"
        text = f"{listed}: discarded by a rule, a VLAN or congestion, not by the cable{reason}"
        return Remark(Mark.NOTE, str(family), where, text)
    if rule.mark is Mark.NOTE:
        return Remark(Mark.NOTE, str(family), where, f"{listed}: {rule.advice}")
    text = f"{listed} in all; whether they grow is not known"
    return Remark(Mark.UNKNOWN, str(family), where, text, "read the counters again some minutes later")


def _rule_of(packets: int, rules: Sequence[DropRule]) -> str:
    """The rules that have matched as many packets as a port discarded, as the end of a sentence."""
    alike = [f"{_counter_name(rule.name)} of {_counter_name(rule.table)}" for rule in rules if rule.packets == packets]
    return f"; probably by rule {_some(alike)}, which has matched as many packets" if alike else ""


def _one_part(then: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The lane of the cable on which nearly all corrected bits are, as the end of a sentence."""
    parts = {match[1]: count - then.get(name, 0) for name, count in now.items() if (match := _OF_PART.fullmatch(name))}
    worst = max(parts, key=lambda number: parts[number], default="")
    if len(parts) > 1 and parts[worst] > 0 and parts[worst] >= _NEARLY_ALL * sum(parts.values()):
        return f"; the bits that FEC corrected are on lane {worst}"
    return ""


def _some(listed: Iterable[str]) -> str:
    names = list(listed)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _counter_name(port: str) -> str:
    return one_line(port, _LONGEST_NAME)
