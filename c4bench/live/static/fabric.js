// A picture of the fabric: hosts at the bottom, switches above by tier, links by what they carry.

import { byId, element, setText } from "./dom.js";
import { percent } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const [ROW, TOP, SLOT, NARROWEST, WIDEST] = [92, 18, 46, 340, 1180];
const [BOX, TALL, LETTER, ASIDE] = [62, 20, 6.6, 2.4];
// More lines are one dark area.
const DRAWN = 400;
const STEPS = [[0.02, "idle"], [0.35, "low"], [0.65, "middle"], [0.9, "high"], [Infinity, "full"]];
const WIDTHS = { idle: 1, low: 1.8, middle: 2.6, high: 3.4, full: 4.2, planned: 1.4, uncounted: 1 };
const MARKS = { missing: "✕", avoided: "!", named: "?" };
const hostOf = (nic) => nic.slice(0, nic.lastIndexOf("/"));

/** The share of its rate that a link carries; null where that is not known. */
export const carriedShare = (link) => (link.carried_bps === null || !link.rate_bps ? null : link.carried_bps / link.rate_bps);

/** How a link is drawn: by its state, else by the share that it carries, else by whether flows are planned there. */
function kindOf(link) {
  if (link.state !== "open") return link.state;
  const share = carriedShare(link);
  if (share === null) return link.flows ? "planned" : "uncounted";
  return STEPS.find(([below]) => share <= below)[1];
}

function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export class FabricView {
  constructor() {
    this.picture = byId("fabric-picture");
    this.drawn = "";
    this.lines = new Map();
    this.nodes = new Map();
  }

  /** Show the fleet's links; what stands where is drawn again only if the links are others. */
  show(fleet) {
    const known = fleet.links.filter((link) => link.source in fleet.tiers && link.target in fleet.tiers);
    const between = known.filter((link) => fleet.tiers[link.source] && fleet.tiers[link.target]);
    const links = known.length <= DRAWN ? known : between.length <= DRAWN ? between : [];
    byId("fabric-parts").hidden = links.length === 0;
    setText(byId("fabric-text"), summary(fleet, known, links));
    const key = links.map((link) => link.link).join("\n");
    if (key !== this.drawn) this.draw(links, fleet.tiers);
    this.drawn = key;
    const named = suspects(fleet);
    for (const link of links) this.colour(link, named.has(link.link) || named.has(link.source) || named.has(link.target));
    const out = fleet.hosts.filter((host) => host.out || host.silent_s !== null).map((host) => host.host);
    for (const [name, node] of this.nodes) {
      const kind = out.includes(name) ? "gone" : named.has(name) ? "named" : "";
      if (node.dataset.state !== kind) node.dataset.state = kind;
    }
  }

  draw(links, tiers) {
    const { places, boxes, width, height } = layout(links, tiers);
    const marks = shape("g", {});
    this.lines.clear();
    const lines = links.map((link) => {
      const ends = aside(places.get(link.source), places.get(link.target));
      const line = shape("line", ends);
      const tip = shape("title", {});
      line.append(tip);
      const mark = shape("text", { x: (ends.x1 + ends.x2) / 2, y: (ends.y1 + ends.y2) / 2 + 4, "text-anchor": "middle" });
      marks.append(mark);
      this.lines.set(link.link, { line, tip, mark });
      return line;
    });
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.style.maxWidth = `${1.5 * width}px`;
    this.picture.style.minWidth = `${0.85 * Math.min(width, 2 * NARROWEST)}px`;
    this.nodes = boxes;
    this.picture.replaceChildren(...lines, ...boxes.values(), marks);
  }

  colour(link, named) {
    const { line, tip, mark } = this.lines.get(link.link);
    const kind = kindOf(link);
    if (line.getAttribute("class") !== kind) {
      line.setAttribute("class", kind);
      line.setAttribute("stroke-width", WIDTHS[kind] ?? 2.6);
    }
    const sign = MARKS[kind] ? kind : named ? "named" : "";
    if (mark.getAttribute("class") !== sign) {
      mark.setAttribute("class", sign);
      mark.textContent = MARKS[sign] ?? "";
    }
    const share = carriedShare(link);
    const carries = share === null ? "not counted" : `carries ${percent(share)}`;
    setText(tip, `${link.name}: ${link.state === "open" ? carries : link.state}`);
  }
}

/** What C4D has named or suspects, links by their names. */
export function namedInWords({ named, links }) {
  const names = new Map(links.map((link) => [`link ${link.link}`, `link ${link.name}`]));
  return named.map((component) => names.get(component) ?? component);
}

/** The picture in words: what is not in use, by name, and which link carries most. */
function summary(fleet, known, drawn) {
  const [every, named] = [fleet.links, namedInWords(fleet)];
  const parts = named.length ? [`C4D suspects ${named.slice(0, 8).join(", ")}${named.length > 8 ? " and others" : ""}.`] : [];
  for (const [state, words] of [["missing", "Missing"], ["avoided", "Avoided"]]) {
    const names = every.filter((link) => link.state === state).map((link) => link.name);
    if (names.length) parts.push(`${words}: ${names.slice(0, 8).join(", ")}${names.length > 8 ? " and others" : ""}.`);
  }
  const counted = every.filter((link) => carriedShare(link) !== null);
  const most = counted.reduce((a, b) => (a && carriedShare(a) >= carriedShare(b) ? a : b), null);
  if (most) parts.push(`${most.name} carries most: ${percent(carriedShare(most))} of its rate.`);
  else if (every.length) parts.push("No switch is read, so what links carry is not known.");
  if (!known.length) parts.push("No path of the fabric is known yet.");
  else if (!drawn.length) parts.push("The fabric has too many links for a picture; the list has them.");
  else if (drawn.length < known.length) parts.push("The links of hosts are left out; the list has them.");
  return parts.join(" ");
}

/** The NICs, hosts, switches and links (by address) that C4D suspects: a NIC with its host, a switch by its name. */
function suspects(fleet) {
  const found = new Set();
  for (const component of fleet.named) {
    const [kind, name] = [component.slice(0, component.indexOf(" ")), component.slice(component.indexOf(" ") + 1)];
    found.add(kind === "switch" ? (fleet.links.find((link) => link.link === name)?.target ?? name) : name);
    if (kind === "nic") found.add(hostOf(name));
  }
  return found;
}

/** Where each node is, the boxes of switches and hosts, and the size of the picture. */
function layout(links, tiers) {
  const nodes = [...new Set(links.flatMap((link) => [link.source, link.target]))];
  const top = Math.max(...nodes.map((node) => tiers[node]));
  const hosts = new Map();
  for (const nic of nodes.filter((node) => tiers[node] === 0)) {
    hosts.set(hostOf(nic), [...(hosts.get(hostOf(nic)) ?? []), nic].sort(byName));
  }
  const rows = Array.from({ length: top }, (_, row) => nodes.filter((node) => tiers[node] === top - row).sort(byName));
  const longest = Math.max(hosts.size, ...rows.map((row) => row.length));
  const width = Math.min(WIDEST, Math.max(NARROWEST, SLOT * longest));
  const places = new Map();
  const boxes = new Map();
  const across = (index, count) => (width * (index + 0.5)) / count;
  rows.forEach((row, depth) => row.forEach((name, index) => {
    places.set(name, [across(index, row.length), TOP + ROW * depth]);
    boxes.set(name, box(name, places.get(name), width / row.length, "switch"));
  }));
  const bottom = TOP + ROW * top;
  const leaves = leafOf(links, tiers);
  const order = [...hosts].map(([host, nics]) => [host, nics, mean(nics.map((nic) => places.get(leaves.get(nic))?.[0] ?? 0))]);
  order.sort((a, b) => a[2] - b[2] || byName(a[0], b[0]));
  order.forEach(([host, nics], index) => {
    const [x, slot] = [across(index, order.length), width / order.length];
    const reach = 0.6 * Math.min(slot, BOX);
    nics.forEach((nic, place) => places.set(nic, [x + reach * ((place + 0.5) / nics.length - 0.5), bottom - TALL / 2]));
    boxes.set(host, box(host, [x, bottom], slot, "host"));
  });
  return { places, boxes, width, height: (hosts.size ? bottom : bottom - ROW) + TALL };
}

const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The leaf of each NIC. */
function leafOf(links, tiers) {
  const ends = links.flatMap((link) => [[link.source, link.target], [link.target, link.source]]);
  return new Map(ends.filter(([nic, leaf]) => tiers[nic] === 0 && tiers[leaf] === 1));
}

/** A node's box; a name that does not fit is in its tooltip only. */
function box(name, [x, y], slot, kind) {
  const width = Math.min(Math.max(BOX, LETTER * name.length + 8), slot - 4);
  const made = shape("g", { class: `node ${kind}` });
  made.append(
    shape("title", {}, name),
    shape("rect", { x: x - width / 2, y: y - TALL / 2, width, height: TALL, rx: 5 }),
  );
  if (LETTER * name.length <= width) made.append(shape("text", { x, y: y + 4, "text-anchor": "middle" }, name));
  return made;
}

/** A line's ends, each direction a little to its right, so that both are seen. */
function aside([x1, y1], [x2, y2]) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [dx, dy] = [(ASIDE * (y1 - y2)) / length, (ASIDE * (x2 - x1)) / length];
  return { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy };
}

/** The key of the picture, made once. */
export function showLegend() {
  const words = [
    ["idle", "idle"], ["low", "to 35 %"], ["middle", "to 65 %"], ["high", "to 90 %"], ["full", "above 90 %"],
    ["planned", "not counted, has planned flows"], ["avoided", "! avoided"], ["missing", "✕ missing"], ["", "? C4D suspects it"],
  ];
  for (const [kind, text] of words) {
    const item = element("li");
    if (kind) {
      const sample = shape("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" });
      sample.append(shape("line", { x1: 1, x2: 25, y1: 4, y2: 4, class: kind, "stroke-width": WIDTHS[kind] ?? 2.6 }));
      item.append(sample);
    }
    item.append(text);
    byId("fabric-legend").append(item);
  }
}
