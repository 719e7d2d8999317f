// The timeline: newest entries first, by kind.

import { byId, element } from "./dom.js";
import { clock } from "./format.js";

const KINDS = { fault: "faults", alarm: "alarms", finding: "findings", action: "actions", host: "hosts", benign: "no faults" };
const KEPT = 500;

export class TimelineView {
  constructor() {
    this.list = byId("entries");
    this.shown = new Set(Object.keys(KINDS));
    for (const [kind, name] of Object.entries(KINDS)) byId("kinds").append(this.choice(kind, name));
  }

  choice(kind, name) {
    const label = element("label");
    const box = element("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      this.shown[box.checked ? "add" : "delete"](kind);
      for (const node of this.list.children) node.hidden = !this.shown.has(node.dataset.kind);
    });
    label.append(box, name);
    return label;
  }

  /** Begin again with these entries. */
  reset(entries) {
    this.list.replaceChildren();
    this.add(entries);
  }

  /** Add entries, each at its time; those that have always been the oldest go. */
  add(entries) {
    for (const entry of entries) this.insert(entry);
    while (this.list.children.length > KEPT) this.list.lastChild.remove();
    byId("timeline-empty").hidden = this.list.children.length > 0;
    byId("log").hidden = this.list.children.length === 0;
  }

  insert(entry) {
    const node = element("li");
    node.dataset.kind = entry.kind;
    node.dataset.time = entry.time_s;
    node.hidden = !this.shown.has(entry.kind);
    const time = element("time", "", clock(entry.time_s));
    time.dateTime = new Date(entry.time_s * 1000).toISOString();
    const what = element("span", "what");
    what.append(element("b", "", entry.subject), `${entry.job ? ` in ${entry.job}` : ""}: ${entry.text}`);
    node.append(time, element("span", `kind ${entry.kind}`, entry.kind), what);
    let next = this.list.firstChild;
    while (next && Number(next.dataset.time) > entry.time_s) next = next.nextSibling;
    this.list.insertBefore(node, next);
  }
}
