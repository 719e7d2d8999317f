// Summary, jobs, links and hosts: what a `fleet` message has.

import { Keyed, byId, element, setClass, setText } from "./dom.js";
import { carriedShare, namedInWords } from "./fabric.js";
import { duration, percent, rate } from "./format.js";

const LATE_S = 2;
const FULL = 0.95;

function row(classes) {
  const made = element("tr");
  classes.forEach((name, index) => {
    const cell = element(index ? "td" : "th", name);
    if (!index) cell.scope = "row";
    made.append(cell);
  });
  return made;
}

function hostState(host) {
  if (host.out) return ["bad", `out of service for ${host.out}`];
  if (host.silent_s !== null) return ["bad", `agent missing for ${Math.round(host.silent_s)} s`];
  if (!host.connected) return ["warn", "agent not connected"];
  if (host.rdma) return ["warn", host.rdma];
  if (host.lag_s !== null && host.lag_s > LATE_S) return ["warn", "telemetry is late"];
  return ["good", "connected"];
}

const RANK = { bad: 0, warn: 1, good: 2 };
const lag = (host) => (host.lag_s === null ? "–" : `${host.lag_s.toFixed(1)} s`);

/** What switches counted on a link, of what it can carry. */
function carried(link) {
  if (link.carried_bps === null) return "not counted";
  const share = carriedShare(link);
  return share === null ? `carries ${rate(link.carried_bps)}` : `carries ${percent(share)} of ${rate(link.rate_bps)}`;
}

const atOnceShare = (link) => (link.rate_bps ? link.offered_bps / link.rate_bps : null);

/** What the plan would make of a link if all NICs sent at once. */
function atOnce(link) {
  if (!link.flows) return "no planned flows";
  const share = atOnceShare(link);
  return `${share === null ? rate(link.offered_bps) : percent(share)} if all sent at once`;
}

export class FleetView {
  /** `choose(name)` is called when a job is chosen. */
  constructor(choose) {
    this.choose = choose;
    this.chosen = "";
    this.fleet = null;
    this.filter = byId("host-filter");
    this.filter.addEventListener("input", () => this.fleet && this.showHosts(this.fleet.hosts));
    this.tiles = new Keyed(byId("tiles"), makeTile, fillTile);
    this.jobs = new Keyed(
      byId("jobs-table").tBodies[0],
      (job) => this.makeJob(job),
      (node, job) => this.fillJob(node, job),
    );
    this.hosts = new Keyed(byId("hosts-table").tBodies[0], () => row(["", "", "number", "number", ""]), fillHost);
    this.links = new Keyed(byId("links-list"), makeLink, fillLink);
  }

  show(fleet) {
    this.fleet = fleet;
    this.showSummary(fleet);
    byId("jobs-empty").hidden = fleet.jobs.length > 0;
    byId("jobs-table").parentNode.hidden = fleet.jobs.length === 0;
    this.jobs.show(fleet.jobs.map((job) => [job.name, job]));
    const links = fleet.links.filter((link) => link.flows || link.carried_bps || link.state !== "open").map((link) => [link.link, link]);
    links.sort(([, a], [, b]) => Number(a.state === "open") - Number(b.state === "open"));
    byId("links-empty").hidden = links.length > 0;
    byId("links-parts").hidden = links.length === 0;
    this.links.show(links);
    this.showHosts(fleet.hosts);
  }

  showSummary(fleet) {
    const connected = fleet.hosts.filter((host) => host.connected).length;
    const out = fleet.hosts.filter((host) => host.out).length;
    const closed = fleet.links.filter((link) => link.state !== "open").length;
    const shares = fleet.links.map(carriedShare).filter((share) => share !== null);
    const latest = Math.max(0, ...fleet.hosts.map((host) => host.lag_s ?? 0));
    const named = namedInWords(fleet);
    const more = named.length > 1 ? ` and ${named.length - 1} more` : "";
    const tiles = [
      ["named and open", named.length ? named[0] + more : "nothing", named.length > 0],
      ["agents connected", `${connected} of ${fleet.hosts.length}`, connected < fleet.hosts.length],
      ["hosts out of service", String(out), out > 0],
      ["jobs", String(fleet.jobs.length), false],
      ["links not in use", String(closed), closed > 0],
      ["busiest link", shares.length ? percent(Math.max(...shares)) : "not counted", false],
      ["longest lag", `${latest.toFixed(1)} s`, latest > LATE_S],
    ];
    this.tiles.show(tiles.map((tile) => [tile[0], tile]));
  }

  makeJob(job) {
    const made = row(["", "", "number", "number", "number", "number", "number", "number"]);
    const button = element("button", "", job.name);
    button.type = "button";
    button.addEventListener("click", () => this.choose(job.name));
    made.firstChild.append(button);
    const heads = byId("jobs-table").tHead.rows[0].cells;
    [...made.children].forEach((cell, index) => (cell.dataset.head = heads[index].textContent));
    return made;
  }

  fillJob(node, job) {
    const [, program, ranks, hosts, step, diagnoses, restarts, unplanned] = node.children;
    node.setAttribute("aria-current", String(job.name === this.chosen));
    setText(program, job.program);
    setText(ranks, String(job.ranks));
    setText(hosts, String(job.hosts));
    setText(step, duration(job.step_s));
    setText(diagnoses, String(job.diagnoses));
    setText(restarts, String(job.restarts));
    setText(unplanned, String(job.unplanned));
  }

  showHosts(hosts) {
    const part = this.filter.value.trim().toLowerCase();
    const shown = hosts.filter((host) => host.host.toLowerCase().includes(part));
    const ranked = shown.map((host) => [host.host, { ...host, state: hostState(host) }]);
    ranked.sort(([, a], [, b]) => RANK[a.state[0]] - RANK[b.state[0]]);
    this.hosts.show(ranked);
    byId("hosts-table").parentNode.hidden = shown.length === 0;
    byId("hosts-empty").hidden = shown.length > 0;
    setText(byId("hosts-empty"), hosts.length ? "No host has this in its name." : "No agent has connected.");
  }
}

function makeTile() {
  const made = element("div");
  made.append(element("dt"), element("dd"));
  return made;
}

function fillTile(node, [name, value, bad]) {
  setText(node.firstChild, name);
  setText(node.lastChild, value);
  setClass(node.lastChild, bad ? "bad" : "");
}

function fillHost(node, host) {
  const [name, state, ranks, late, version] = node.children;
  setText(name, host.host);
  setText(state, host.state[1]);
  setClass(state, host.state[0]);
  setText(ranks, String(host.ranks));
  setText(late, lag(host));
  setText(version, host.version);
}

function makeLink() {
  const made = element("li");
  const meter = element("meter");
  meter.min = meter.optimum = 0;
  made.append(
    element("span", "name"), element("span", "address"), element("span"),
    meter, element("span", "carried"), element("span", "at-once"),
  );
  return made;
}

function fillLink(node, link) {
  const [name, address, state, meter, carries, planned] = node.children;
  const share = carriedShare(link);
  setText(name, link.name);
  setText(address, link.name === link.link ? "" : link.link);
  setText(state, link.state === "open" ? "" : link.state);
  setClass(state, link.state === "missing" ? "bad" : "warn");
  setText(carries, carried(link));
  setText(planned, atOnce(link));
  meter.hidden = share === null;
  meter.max = Math.max(1, share);
  meter.high = FULL;
  if (meter.value !== share) meter.value = share ?? 0;
  meter.setAttribute("aria-label", `share of its rate that ${link.name} carries`);
}
