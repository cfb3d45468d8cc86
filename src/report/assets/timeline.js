class Timeline {
  constructor(columns) {
    this.c = columns;
    this.n = columns.begin.length;
    this.layers = meta.layers.map((layer, i) => ({ ...layer, values: columns["layer" + i], shown: layer.peak > 0 }));
    this.total = new Extreme(columns.totalHigh, 1);
    this.low = new Extreme(columns.totalLow, -1);
    this.reserved = new Extreme(columns.reservedHigh, 1);
    this.figure = !meta.isRun && columns.markTime.length > 0;
    this.events = false;
    this.fitY = false;
    this.highlighted = -1;
    this.cursor = null;
    this.canvas = byId("timeline");
    this.overview = byId("overview");
    this.right = 14;
    this.step = meta.step && this.withRoom(...meta.step);
    if (this.step) [this.from, this.to] = this.step;
    else this.whole();
    this.legend();
    this.listen();
  }

  // ---- Coordinates: time in nanoseconds, or event numbers.
  starts() { return this.events ? this.c.event : this.c.begin; }
  first() { return this.n ? this.starts()[0] : 0; }
  last() { return Math.max(this.first() + 1, this.events ? meta.events : meta.end); }
  whole() { this.from = this.first(); this.to = this.last(); }
  /** Begin and end of a step, in nanoseconds, and a little of what is around it. */
  withRoom(from, to) {
    const room = (to - from) * 0.03;
    return [Math.max(this.first(), from - room), Math.min(this.last(), to + room)];
  }
  leafAt(x) { return Math.max(0, Math.min(this.n - 1, upperBound(this.starts(), x) - 1)); }
  /** Converts nanoseconds to the unit of the current axis. */
  fromTime(ns) {
    if (!this.events) return ns;
    const leaf = Math.max(0, upperBound(this.c.begin, ns) - 1), c = this.c;
    const span = (leaf + 1 < this.n ? c.begin[leaf + 1] : meta.end) - c.begin[leaf];
    const count = (leaf + 1 < this.n ? c.event[leaf + 1] : meta.events) - c.event[leaf];
    return c.event[leaf] + (span > 0 ? Math.min(1, (ns - c.begin[leaf]) / span) * count : 0);
  }
  toTime(x) {
    if (!this.events) return x;
    const leaf = this.leafAt(x), c = this.c;
    const count = (leaf + 1 < this.n ? c.event[leaf + 1] : meta.events) - c.event[leaf];
    const span = (leaf + 1 < this.n ? c.begin[leaf + 1] : meta.end) - c.begin[leaf];
    return c.begin[leaf] + (count > 0 ? (x - c.event[leaf]) / count * span : 0);
  }
  setView(from, to) {
    const least = this.events ? 4 : 20, all = this.last() - this.first();
    const size = Math.max(least, Math.min(all, to - from)), middle = (from + to) / 2;
    this.from = Math.max(this.first(), Math.min(this.last() - size, middle - size / 2));
    this.to = this.from + size;
    this.redraw();
  }
  zoom(factor, at) {
    const center = at === undefined ? (this.from + this.to) / 2 : at;
    this.setView(center - (center - this.from) * factor, center + (this.to - center) * factor);
  }
  pan(share) { const by = (this.to - this.from) * share; this.setView(this.from + by, this.to + by); }

  // ---- Drawing.
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
      this.drawOverview();
    });
  }
  /** For each column of pixels: the leaf with the highest total, and the minimum and maximum. */
  sample(from, to, count) {
    const starts = this.starts(), peak = new Uint32Array(count), reserved = new Float64Array(count);
    let begin = Math.max(0, upperBound(starts, from) - 1);
    for (let i = 0; i < count; ++i) {
      const end = Math.max(begin + 1, this.nextLeaf(starts, from + (to - from) * (i + 1) / count, begin));
      peak[i] = this.total.find(begin, Math.min(end, this.n));
      reserved[i] = this.c.reservedHigh[this.reserved.find(begin, Math.min(end, this.n))];
      begin = Math.min(this.n - 1, end - 1);
    }
    return { peak, reserved };
  }
  /** First leaf that begins at or after x, searched from `low` on. */
  nextLeaf(starts, x, low) {
    let high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  shownTotal(leaf) {
    let sum = 0;
    for (const layer of this.layers) if (layer.shown) sum += layer.values[leaf];
    return sum;
  }
  draw() {
    const { context: g, width, height, ratio } = prepare(this.canvas);
    if (!this.n) return;
    const left = 86, right = this.right, top = 12, band = 18, bottom = 44;
    const box = this.box = { left, top, width: width - left - right, height: height - top - bottom };
    const count = Math.max(1, Math.round(box.width * Math.min(ratio, 2)));
    const s = this.samples = this.sample(this.from, this.to, count);
    let most = 1;
    if (this.fitY) {
      for (let i = 0; i < count; ++i) most = Math.max(most, s.reserved[i], this.shownTotal(s.peak[i]));
    } else {
      most = Math.max(meta.peakReserved.bytes, this.c.totalHigh[this.total.find(0, this.n)]);
    }
    const plan = meta.plan, ceiling = plan && plan.capacity > 0 && plan.capacity < 3 * most ? plan.capacity : 0;
    if (!this.fitY) most = Math.max(most, ceiling, plan ? plan.peak : 0);
    most *= 1.1;
    const x = (value) => left + (value - this.from) / (this.to - this.from) * box.width;
    const y = (bytes) => top + box.height * (1 - bytes / most);
    this.x = x;
    g.fillStyle = cssColor("paper");
    g.fillRect(0, 0, width, height);
    this.byteAxis(g, most, y, box);
    g.save();
    g.beginPath();
    g.rect(left, top, box.width, box.height);
    g.clip();
    if (this.figure) this.drawFigure(g, s, x, y, box);
    else this.drawStack(g, s, y, box);
    this.steps(g, s.reserved, y, box, cssColor("reserved"), this.figure ? 2 : 1.5, []);
    if (this.figure) this.crosses(g, x, y, box);
    if (plan) this.planned(g, plan, ceiling, x, y, box);
    if (this.cursor !== null) {
      g.fillStyle = cssColor("ink");
      g.fillRect(x(this.cursor) - 0.5, top, 1, box.height);
    }
    g.restore();
    this.keys(g, box);
    this.phaseBand(g, x, box, top + box.height + 3, band);
    this.timeAxis(g, x, box, top + box.height + band + 8);
  }
  byteAxis(g, most, y, box) {
    let step = 1;
    while (most / step > 8) step *= 2;
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (let tick = 0; tick <= most; tick += step) {
      g.fillStyle = cssColor("grid");
      g.fillRect(box.left, Math.round(y(tick)), box.width, 1);
      g.fillStyle = cssColor("faint");
      g.fillText(bytesText(tick), box.left - 8, y(tick));
    }
  }
  /** Draws areas from the bottom up, one path per layer. */
  drawStack(g, s, y, box) {
    const count = s.peak.length, sums = new Float64Array(count), step = box.width / count;
    this.layers.forEach((layer, index) => {
      if (!layer.shown) return;
      const before = sums.slice();
      g.beginPath();
      g.moveTo(box.left, y(before[0]));
      for (let i = 0; i < count; ++i) {
        sums[i] += layer.values[s.peak[i]];
        g.lineTo(box.left + i * step, y(sums[i]));
        g.lineTo(box.left + (i + 1) * step, y(sums[i]));
      }
      for (let i = count; i-- > 0;) {
        g.lineTo(box.left + (i + 1) * step, y(before[i]));
        g.lineTo(box.left + i * step, y(before[i]));
      }
      g.globalAlpha = this.highlighted >= 0 && this.highlighted !== index ? 0.25 : 1;
      g.fillStyle = layer.color;
      g.fill();
    });
    g.globalAlpha = 1;
  }
  drawFigure(g, s, x, y, box) {
    const allocated = Float64Array.from(s.peak, (leaf) => this.c.totalHigh[leaf]);
    const step = box.width / allocated.length;
    g.fillStyle = cssColor("fill");
    for (let i = 0; i < allocated.length; ++i) {
      g.fillRect(box.left + i * step, y(allocated[i]), step + 0.5, y(0) - y(allocated[i]));
    }
    this.steps(g, allocated, y, box, cssColor("allocated"), 1.3, []);
    this.marks(g, x, y, box);
  }
  /** Fragmentation at driver allocations: a bar below reserved, and a dotted line for reserved
   * without it. */
  marks(g, x, y, box) {
    const c = this.c, at = this.events ? c.markEvent : c.markTime;
    const begin = Math.max(0, upperBound(at, this.from) - 1), end = Math.min(at.length, upperBound(at, this.to) + 1);
    const dotted = [];
    for (let i = begin; i < end;) {
      const px = Math.max(box.left, x(at[i])), next = at[i] + (this.to - this.from) / box.width;
      let longest = i, lowest = Infinity;
      for (; i < end && at[i] <= next; ++i) {
        if (c.markFragmentation[i] > c.markFragmentation[longest]) longest = i;
        lowest = Math.min(lowest, c.markReserved[i] - c.markFragmentation[i]);
      }
      if (c.markFragmentation[longest] > 0) {
        g.fillStyle = cssColor("mark");
        const high = y(c.markReserved[longest]);
        g.fillRect(px - 0.5, high, 1.5, y(c.markReserved[longest] - c.markFragmentation[longest]) - high);
      }
      dotted.push([px, y(lowest)]);
    }
    if (!dotted.length) return;
    g.beginPath();
    dotted.forEach(([px, py], i) => {
      if (i === 0) g.moveTo(px, py);
      else {
        g.lineTo(px, dotted[i - 1][1]);
        g.lineTo(px, py);
      }
    });
    g.lineTo(box.left + box.width, dotted[dotted.length - 1][1]);
    this.stroke(g, cssColor("without"), 1.7, [3, 3]);
  }
  crosses(g, x, y, box) {
    const without = meta.peakWithout, peak = meta.peakReserved;
    if (without.bytes > 0) {
      g.beginPath();
      g.moveTo(box.left, y(without.bytes));
      g.lineTo(box.left + box.width, y(without.bytes));
      this.stroke(g, cssColor("without"), 1.4, [3, 3]);
    }
    for (const [mark, color] of [[without, "without"], [peak, "peak"]]) {
      if (mark.bytes === 0) continue;
      const cx = x(this.fromTime(mark.time)), cy = y(mark.bytes), r = 7;
      for (const [width, ink] of [[6, "paper"], [3, color]]) {
        g.beginPath();
        g.moveTo(cx - r, cy - r);
        g.lineTo(cx + r, cy + r);
        g.moveTo(cx - r, cy + r);
        g.lineTo(cx + r, cy - r);
        this.stroke(g, cssColor(ink), width, []);
      }
    }
  }
  planned(g, plan, ceiling, x, y, box) {
    const c = this.c;
    g.beginPath();
    this.visiblePhases((i, begin, end) => {
      const bytes = plan.phases[meta.phaseNames[c.phaseName[i]]];
      if (bytes === undefined) return;
      g.moveTo(Math.max(box.left, x(begin)), y(bytes));
      g.lineTo(Math.min(box.left + box.width, x(end)), y(bytes));
    });
    this.stroke(g, cssColor("planned"), 2, [5, 4]);
    const near = ceiling && Math.abs(y(ceiling) - y(plan.peak)) < 16;
    const levels = [[ceiling, "ceiling", [10, 5], near ? `ceiling ${bytesText(ceiling)}, planned peak ${bytesText(plan.peak)}` : `ceiling ${bytesText(ceiling)}`]];
    levels.push([plan.peak, "planned", [2, 4], near ? "" : `planned peak ${bytesText(plan.peak)}`]);
    for (const [bytes, color, dash, label] of levels) {
      if (!bytes) continue;
      g.beginPath();
      g.moveTo(box.left, y(bytes));
      g.lineTo(box.left + box.width, y(bytes));
      this.stroke(g, cssColor(color), 1.6, dash);
      g.fillStyle = cssColor(color);
      g.textAlign = "right";
      g.textBaseline = "bottom";
      g.fillText(label, box.left + box.width - 4, y(bytes) - 2);
    }
  }
  steps(g, values, y, box, color, width, dash) {
    const step = box.width / values.length;
    g.beginPath();
    g.moveTo(box.left, y(values[0]));
    for (let i = 0; i < values.length; ++i) {
      if (i > 0 && values[i] === values[i - 1]) continue;
      g.lineTo(box.left + i * step, y(values[Math.max(0, i - 1)]));
      g.lineTo(box.left + i * step, y(values[i]));
    }
    g.lineTo(box.left + box.width, y(values[values.length - 1]));
    this.stroke(g, color, width, dash);
  }
  stroke(g, color, width, dash) {
    g.strokeStyle = color;
    g.lineWidth = width;
    g.lineJoin = "round";
    g.setLineDash(dash);
    g.stroke();
    g.setLineDash([]);
  }
  visiblePhases(visit) {
    const c = this.c;
    for (let i = 0; i < c.phaseBegin.length; ++i) {
      const begin = this.fromTime(c.phaseBegin[i]), end = this.fromTime(c.phaseEnd[i]);
      if (end >= this.from && begin <= this.to) visit(i, begin, end);
    }
  }
  phaseBand(g, x, box, y, height) {
    g.font = "11px system-ui, sans-serif";
    g.textAlign = "center";
    g.textBaseline = "middle";
    this.visiblePhases((i, begin, end) => {
      const low = Math.max(box.left, x(begin)), high = Math.min(box.left + box.width, x(end));
      if (high - low < 0.3) return;
      const depth = Math.min(2, this.c.phaseDepth[i]), name = this.c.phaseName[i], color = meta.phaseColors[name];
      const inset = depth * 5;
      g.fillStyle = color;
      g.fillRect(low, y + inset, Math.max(0.7, high - low - 0.5), height - inset);
      const text = meta.phaseNames[name];
      if (depth > 0 || g.measureText(text).width + 8 > high - low) return;
      const [r, green, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
      g.fillStyle = 0.3 * r + 0.59 * green + 0.11 * b < 140 ? "#ffffff" : "#1f2430";
      g.fillText(text, (low + high) / 2, y + height / 2);
    });
  }
  timeAxis(g, x, box, y) {
    const scale = this.events ? 1 : 1e9, least = (this.to - this.from) / scale / (box.width / 110);
    const ten = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].find((f) => f * ten >= least) * ten;
    g.fillStyle = cssColor("faint");
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "center";
    g.textBaseline = "top";
    for (let tick = Math.ceil(this.from / scale / step); tick * step <= this.to / scale; ++tick) {
      const value = tick * step;
      g.fillRect(x(value * scale), y - 4, 1, 4);
      const label = this.events ? Math.round(value).toLocaleString("en") : timeText(value * 1e9, step * 1e9);
      g.fillText(label, Math.min(x(value * scale), box.left + box.width + this.right - g.measureText(label).width / 2), y + 2);
    }
  }
  /** Legend of the lines, at the upper left where memory is low. */
  keys(g, box) {
    const lines = [[meta.isRun ? "held from the device" : "reserved", "reserved", []]];
    if (this.figure) lines.push(["allocated", "allocated", []], ["reserved w/o fragmentation", "without", [3, 3]], ["fragmentation", "mark", []]);
    if (meta.plan) lines.push(["planned, by phase", "planned", [5, 4]]);
    let at = box.left + 12;
    g.textAlign = "left";
    g.textBaseline = "middle";
    for (const [name, color, dash] of lines) {
      g.beginPath();
      g.moveTo(at, box.top + 8);
      g.lineTo(at + 22, box.top + 8);
      this.stroke(g, cssColor(color), 2.2, dash);
      g.fillStyle = cssColor("ink");
      g.fillText(name, at + 28, box.top + 8.5);
      at += 28 + g.measureText(name).width + 20;
    }
  }
  drawOverview() {
    const { context: g, width, height } = prepare(this.overview);
    if (!this.n) return;
    const box = this.overviewBox = { left: 86, width: width - 100 };
    const count = Math.max(1, Math.round(box.width)), s = this.sample(this.first(), this.last(), count);
    const most = Math.max(1, meta.peakReserved.bytes, this.c.totalHigh[this.total.find(0, this.n)]);
    const column = (i, bytes) => g.fillRect(box.left + i, height * (1 - bytes / most), 1, height * bytes / most);
    g.fillStyle = cssColor("line");
    for (let i = 0; i < count; ++i) column(i, s.reserved[i]);
    g.fillStyle = cssColor("allocated");
    for (let i = 0; i < count; ++i) column(i, this.c.totalHigh[s.peak[i]]);
    const all = this.last() - this.first();
    const low = box.left + (this.from - this.first()) / all * box.width, high = box.left + (this.to - this.first()) / all * box.width;
    g.fillStyle = cssColor("paper");
    g.globalAlpha = 0.65;
    g.fillRect(box.left, 0, low - box.left, height);
    g.fillRect(high, 0, box.left + box.width - high, height);
    g.globalAlpha = 1;
    g.strokeStyle = cssColor("ink");
    g.strokeRect(low + 0.5, 0.5, Math.max(2, high - low - 1), height - 1);
  }
}
