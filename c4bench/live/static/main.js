// Follows the master's stream and shows what it brings. A lost connection is opened again by the browser.

import { byId, setText } from "./dom.js";
import { FabricView, showLegend } from "./fabric.js";
import { FleetView } from "./fleet.js";
import { JobView } from "./job.js";
import { TimelineView } from "./timeline.js";

const AGAIN_MS = 2000;
const job = new JobView();
const timeline = new TimelineView();
const fleet = new FleetView(follow);
const fabric = new FabricView();
let stream = null;

function connection(state, text) {
  const node = byId("connection");
  node.dataset.state = state;
  setText(node, text);
}

/** Follow the stream with the details of this job, "" for the first one. */
function follow(name) {
  stream?.close();
  fleet.chosen = name;
  stream = new EventSource(name ? `/stream?job=${encodeURIComponent(name)}` : "/stream");
  stream.addEventListener("open", () => connection("live", "live"));
  stream.addEventListener("error", () => lost());
  stream.addEventListener("timeline", (event) => timeline.reset(JSON.parse(event.data)));
  stream.addEventListener("entries", (event) => timeline.add(JSON.parse(event.data)));
  stream.addEventListener("fleet", (event) => showFleet(JSON.parse(event.data)));
  stream.addEventListener("job", (event) => showJob(JSON.parse(event.data)));
}

function showFleet(state) {
  fleet.show(state);
  fabric.show(state);
}

function showJob(detail) {
  if (detail) fleet.chosen = detail.name;
  job.show(detail);
}

/** A connection that the browser does not open again was refused: the token has ended. */
async function lost() {
  connection("lost", "connection lost, trying again");
  if (stream.readyState !== EventSource.CLOSED) return;
  const answer = await fetch("/main.js").catch(() => null);
  if (answer?.status === 401) location.assign("/");
  else setTimeout(() => follow(fleet.chosen), AGAIN_MS);
}

showLegend();
follow("");
