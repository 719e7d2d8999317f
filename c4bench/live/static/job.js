// One job: its step times and its delay matrix.

import { Keyed, byId, element, setText } from "./dom.js";
import { duration, median } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [640, 160];
const SLOWEST = 10;
// As many names stand at an axis of the matrix; with more NICs, every second one, or third, and so on.
const NAMES = 12;
// From blue by grey to red, as in the reports: a cell at the median is grey, at twice the median red.
const COLOURS = [[59, 76, 192], [221, 221, 221], [180, 4, 38]];
const SHADES = 256;
const PALETTE = Uint32Array.from({ length: 2 * SHADES + 1 }, (_, shade) => colour(shade / SHADES));

export class JobView {
  constructor() {
    this.line = document.createElementNS(SVG, "polyline");
    this.middle = document.createElementNS(SVG, "line");
    byId("steps").append(this.middle, this.line);
    const make = () => {
      const made = element("tr");
      made.append(element("td"), element("td"), element("td", "number"));
      return made;
    };
    this.cells = new Keyed(byId("cells").tBodies[0], make, (node, texts) => {
      texts.forEach((text, index) => setText(node.children[index], text));
    });
  }

  /** Show a job's details, or that there are none. */
  show(job) {
    byId("job-detail").hidden = !job;
    byId("job-empty").hidden = Boolean(job);
    setText(byId("job-title"), job ? `Job ${job.name}` : "Job");
    if (!job) return;
    this.showSteps(job.steps_s);
    this.showMatrix(job.nics, job.cells);
  }

  showSteps(steps) {
    const text = byId("steps-text");
    if (!steps.length) {
      setText(text, "No two like operations have ended yet.");
      this.line.removeAttribute("points");
      return;
    }
    const typical = median(steps);
    const top = 1.1 * Math.max(...steps, typical);
    const y = (value) => (HEIGHT * (1 - value / top)).toFixed(1);
    const x = (index) => ((WIDTH * index) / Math.max(1, steps.length - 1)).toFixed(1);
    this.line.setAttribute("points", steps.map((value, index) => `${x(index)},${y(value)}`).join(" "));
    for (const [name, value] of [["x1", 0], ["x2", WIDTH], ["y1", y(typical)], ["y2", y(typical)]]) {
      this.middle.setAttribute(name, value);
    }
    const newest = steps[steps.length - 1];
    setText(
      text,
      `Time between like operations, the last ${steps.length}: newest ${duration(newest)}, ` +
        `median ${duration(typical)} (dashed), longest ${duration(Math.max(...steps))}. The scale begins at 0.`,
    );
  }

  showMatrix(nics, flat) {
    const canvas = byId("matrix");
    const size = nics.length;
    const empty = size === 0;
    byId("matrix-parts").hidden = empty;
    if (empty) {
      setText(byId("matrix-text"), "No data has been carried yet.");
      return;
    }
    if (canvas.width !== size) canvas.width = canvas.height = size;
    this.showAxes(nics);
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    const pixels = new Uint32Array(image.data.buffer);
    const values = new Float64Array(flat.length / 3).map((_, index) => flat[3 * index + 2]).sort();
    const typical = values.length ? values[values.length >> 1] || 1 : 1;
    for (let index = 0; index < flat.length; index += 3) {
      const shade = Math.round((SHADES * flat[index + 2]) / typical);
      pixels[flat[index] * size + flat[index + 1]] = PALETTE[Math.min(2 * SHADES, Math.max(0, shade))];
    }
    context.putImageData(image, 0, 0);
    setText(
      byId("matrix-text"),
      `Rows send, columns receive: ${size} NICs, ${values.length} cells with data, median ${Math.round(typical)} ps per byte.`,
    );
    this.showSlowest(nics, flat, values[Math.max(0, values.length - SLOWEST)]);
  }

  /** The names of NICs beside the rows and above the columns, each at its own. */
  showAxes(nics) {
    const key = nics.join("\n");
    if (key === this.axes) return;
    this.axes = key;
    const every = Math.ceil(nics.length / NAMES);
    for (const [axis, side] of [[byId("matrix-rows"), "top"], [byId("matrix-columns"), "left"]]) {
      const names = nics.map((nic, index) => [nic, index]).filter(([, index]) => index % every === 0);
      axis.replaceChildren(...names.map(([nic, index]) => {
        const label = element("span", "", nic);
        label.style[side] = `${(100 * (index + 0.5)) / nics.length}%`;
        return label;
      }));
    }
  }

  /** List the slowest cells: those of at least `least`, of which there are about as many as are shown. */
  showSlowest(nics, flat, least) {
    const cells = [];
    for (let index = 0; index < flat.length; index += 3) {
      if (flat[index + 2] >= least) cells.push(flat.slice(index, index + 3));
    }
    cells.sort((a, b) => b[2] - a[2]);
    const texts = cells.slice(0, SLOWEST).map(([row, column, value]) => [nics[row], nics[column], String(value)]);
    this.cells.show(texts.map((text, index) => [String(index), text]));
  }
}

/** The pixel of a cell by its cost against the median, 0 to 2. */
function colour(ratio) {
  const low = ratio < 1 ? 0 : 1;
  const mixed = COLOURS[low].map((value, index) => value + (ratio - low) * (COLOURS[low + 1][index] - value));
  return new Uint32Array(new Uint8ClampedArray([...mixed, 255]).buffer)[0];
}
