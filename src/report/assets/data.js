"use strict";
// Reads the page's numbers. Finds the highest and lowest value of a range in logarithmic time.

const meta = JSON.parse(document.getElementById("meta").textContent);
const byId = (id) => document.getElementById(id);

async function readColumns() {
  if (typeof DecompressionStream === "undefined")
    throw new Error("This browser is too old for the drawing (it lacks DecompressionStream).");
  const text = atob(byId("payload").textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  byId("payload").remove();
  const columns = {};
  let at = 0;
  for (const { name, unit, count } of meta.columns) {
    const values = new Float64Array(count);
    let value = 0;
    for (let i = 0; i < count; ++i) {
      // Shift operators of JavaScript wrap beyond 31 bits; multiplication does not.
      let zigzag = 0, scale = 1, byte;
      do {
        byte = bytes[at++];
        zigzag += (byte & 127) * scale;
        scale *= 128;
      } while (byte > 127);
      value += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
      values[i] = value * unit;
    }
    columns[name] = values;
  }
  return columns;
}

/** Finds the index of the best value of any range. `sign` 1: highest, -1: lowest. The first of equal
 * values wins. */
class Extreme {
  constructor(values, sign) {
    this.values = values;
    this.sign = sign;
    this.levels = [];
    let below = null;
    for (let size = Math.ceil(values.length / 2); below === null || below.length > 1; size = Math.ceil(size / 2)) {
      const level = new Uint32Array(size);
      const count = below === null ? values.length : below.length;
      for (let i = 0; i < size; ++i) {
        const a = below === null ? 2 * i : below[2 * i];
        level[i] = 2 * i + 1 < count ? this.better(a, below === null ? 2 * i + 1 : below[2 * i + 1]) : a;
      }
      this.levels.push(level);
      below = level;
    }
  }
  better(a, b) { return (this.values[b] - this.values[a]) * this.sign > 0 ? b : a; }
  /** Searches [begin, end), which is not empty. */
  find(begin, end) {
    let best = begin, right = -1;
    const pick = (level, i) => (level === 0 ? i : this.levels[level - 1][i]);
    for (let level = 0; begin < end; ++level, begin >>= 1, end >>= 1) {
      if (begin & 1) best = this.better(best, pick(level, begin++));
      if (end & 1) {
        const candidate = pick(level, --end);
        right = right < 0 ? candidate : this.better(candidate, right);
      }
    }
    return right < 0 ? best : this.better(best, right);
  }
}

/** Index of the first value greater than `x`. */
function upperBound(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytesText(bytes) {
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return (Number.isInteger(value) ? value.toString() : value.toFixed(value < 100 ? 2 : 1)) + " " + units[unit];
}
const exactBytes = (bytes) => `${bytesText(bytes)} (${bytes.toLocaleString("en")} B)`;
function timeText(ns, step) {
  const seconds = ns / 1e9, digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10((step || 1e3) / 1e9) + 1e-9)));
  return seconds.toFixed(digits) + " s";
}
function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
/** Shows rows of [colour or null, name, value] next to the pointer. */
function showTip(event, head, rows) {
  const tip = byId("tip");
  tip.replaceChildren();
  for (const line of head) element("div", line, tip);
  const table = element("table", undefined, tip);
  for (const [color, name, value] of rows) {
    const row = element("tr", undefined, table), cell = element("th", undefined, row);
    if (color) element("i", undefined, cell).style.background = color;
    cell.append(name);
    element("td", value, row);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), space = 16;
  const left = event.clientX + space + box.width < innerWidth ? event.clientX + space : event.clientX - space - box.width;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + space, innerHeight - box.height - 4)) + "px";
}
const hideTip = () => { byId("tip").hidden = true; };
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
/** Returns a canvas context in CSS pixels, with the resolution of the screen. */
function prepare(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 3), box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  return { context, width: box.width, height: box.height, ratio };
}
