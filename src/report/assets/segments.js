/** Draws segments one after another in rows of equal bytes. Bytes without a block are free. */
class SegmentView {
  constructor(columns, layers) {
    this.c = columns;
    this.layers = layers;
    this.canvas = byId("map");
    this.index = 0;
    byId("segments").hidden = false;
    const choice = byId("mapChoice");
    meta.maps.forEach((map, i) => element("option", map.label, choice).value = i);
    choice.onchange = () => this.choose(Number(choice.value));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    addEventListener("resize", () => this.draw());
    this.choose(0);
  }
  column(name) { return this.c[`map${this.index}.${name}`]; }
  choose(index) {
    this.index = index;
    const map = meta.maps[index], size = this.column("size"), blocks = this.column("blocks");
    this.starts = new Float64Array(size.length);
    this.firstBlock = new Uint32Array(size.length + 1);
    for (let i = 0, at = 0; i < size.length; at += size[i++]) {
      this.starts[i] = at;
      this.firstBlock[i + 1] = this.firstBlock[i] + blocks[i];
    }
    byId("mapFacts").textContent = `${timeText(map.time, 1e6)}: ${bytesText(map.reserved)} reserved in ${size.length} segments, ` +
      `${bytesText(map.allocated)} allocated, largest gap ${bytesText(map.largestGap)}, ${bytesText(map.wholeFree)} in empty segments` +
      (map.joined ? "; neighbouring blocks of one layer are drawn as one" : "");
    this.draw();
  }
  draw() {
    const { context: g, width, height } = prepare(this.canvas), map = meta.maps[this.index];
    this.rows = Math.max(1, Math.floor(height / 12));
    this.perRow = Math.max(1, Math.ceil(map.reserved / this.rows));
    const rowHeight = height / this.rows;
    const span = (begin, size, color) => {
      g.fillStyle = color;
      while (size > 0) {
        const row = Math.floor(begin / this.perRow), inRow = begin - row * this.perRow, part = Math.min(size, this.perRow - inRow);
        g.fillRect(inRow / this.perRow * width, row * rowHeight, part / this.perRow * width, rowHeight - 2);
        begin += part;
        size -= part;
      }
    };
    const size = this.column("size"), offset = this.column("offset"), length = this.column("length"), layer = this.column("layer");
    const gap = cssColor("gap"), edge = cssColor("faint");
    for (let i = 0; i < size.length; ++i) {
      span(this.starts[i], size[i], gap);
      for (let b = this.firstBlock[i]; b < this.firstBlock[i + 1]; ++b)
        span(this.starts[i] + offset[b], length[b], this.layers[Math.floor(layer[b] / 2)].color);
      span(this.starts[i], Math.min(size[i], this.perRow / width), edge);
    }
    this.rowHeight = rowHeight;
    this.width = width;
  }
  hover(event) {
    const at = (Math.floor(event.offsetY / this.rowHeight) + Math.min(0.999999, event.offsetX / this.width)) * this.perRow;
    const i = upperBound(this.starts, at) - 1, size = this.column("size");
    if (i < 0 || at >= this.starts[i] + size[i]) {
      hideTip();
      return;
    }
    const flags = this.column("flags")[i], offset = this.column("offset"), length = this.column("length"), inside = at - this.starts[i];
    const kind = [flags & 1 ? "small pool" : "large pool", flags & 2 ? "expandable" : null, flags >> 2 ? `private pool ${flags >> 2}` : null,
      `stream ${this.column("stream")[i]}`].filter(Boolean).join(", ");
    let used = 0, found = -1, before = 0, after = size[i];
    for (let b = this.firstBlock[i]; b < this.firstBlock[i + 1]; ++b) {
      used += length[b];
      if (offset[b] <= inside && inside < offset[b] + length[b]) found = b;
      if (offset[b] + length[b] <= inside) before = offset[b] + length[b];
      if (offset[b] > inside) after = Math.min(after, offset[b]);
    }
    const head = [`segment 0x${BigInt(this.column("address")[i]).toString(16)}, ${kind}`];
    const rows = [[null, "size", exactBytes(size[i])], [null, "allocated", exactBytes(used)]];
    if (found >= 0) {
      const layer = this.column("layer")[found], count = this.column("count")[found];
      rows.push([this.layers[Math.floor(layer / 2)].color, (count > 1 ? `${count} blocks ` : "block ") + this.layers[Math.floor(layer / 2)].label +
        (layer % 2 ? ", pending free" : ""), exactBytes(length[found])]);
    } else {
      rows.push([cssColor("gap"), "free here", exactBytes(after - before)]);
    }
    showTip(event, head, rows);
  }
}

readColumns().then((columns) => {
  const timeline = new Timeline(columns);
  const segments = meta.maps.length ? new SegmentView(columns, timeline.layers) : null;
  const redraw = () => {
    timeline.draw();
    timeline.drawOverview();
    if (segments) segments.draw();
  };
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  byId("theme").onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  };
  dark.addEventListener("change", redraw);
  let theme;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    redraw();
  });
  redraw();
}).catch((error) => {
  const note = element("p", `The drawing failed: ${error.message}`);
  note.className = "note";
  document.querySelector("main").prepend(note);
});
