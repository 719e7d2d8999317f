// Numbers and times as people read them.

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Unix seconds to the local time of day. */
export const clock = (seconds) => CLOCK.format(new Date(seconds * 1000));

/** Seconds to text with three significant digits and a unit: 0.00238 is "2.38 ms". */
export function duration(seconds) {
  if (seconds === null) return "–";
  const size = Math.abs(seconds);
  const [scale, unit] = size >= 1 || size === 0 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((seconds * scale).toPrecision(3))} ${unit}`;
}

/** Bit/s to text: 1e10 is "10 Gbit/s". */
export function rate(bps) {
  const [scale, unit] = bps >= 1e9 ? [1e9, "Gbit/s"] : bps >= 1e6 ? [1e6, "Mbit/s"] : [1e3, "kbit/s"];
  return `${Number((bps / scale).toPrecision(3))} ${unit}`;
}

/** A share as text: 0.051 is "5 %"; less than half a percent is not nothing. */
export const percent = (share) => (share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);

/** The value in the middle of some numbers; NaN of none. */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
}
