// Handles the pointer, keys and buttons of the timeline.
Object.assign(Timeline.prototype, {
  legend() {
    const box = byId("legend");
    this.layers.forEach((layer, index) => {
      if (layer.peak === 0) return;
      const button = element("button", undefined, box);
      element("i", undefined, button).style.background = layer.color;
      button.append(layer.label);
      element("small", bytesText(layer.peak), button);
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => {
        layer.shown = !layer.shown;
        button.setAttribute("aria-pressed", String(layer.shown));
        this.redraw();
      };
      const highlight = (value) => () => {
        this.highlighted = value;
        this.redraw();
      };
      button.onmouseenter = button.onfocus = highlight(index);
      button.onmouseleave = button.onblur = highlight(-1);
    });
  },
  setFigure(on) {
    this.figure = on;
    byId("viewFigure").setAttribute("aria-pressed", String(on));
    byId("viewStack").setAttribute("aria-pressed", String(!on));
    this.redraw();
  },
  setEvents(on) {
    const from = this.toTime(this.from), to = this.toTime(this.to);
    const cursor = this.cursor === null ? null : this.toTime(this.cursor);
    this.events = on;
    if (cursor !== null) this.cursor = this.fromTime(cursor);
    byId("axis").setAttribute("aria-pressed", String(on));
    this.setView(this.fromTime(from), this.fromTime(to));
  },
  setFitY(on) {
    this.fitY = on;
    byId("fitY").setAttribute("aria-pressed", String(on));
    this.redraw();
  },
  showStep() {
    if (this.step) this.setView(this.fromTime(this.step[0]), this.fromTime(this.step[1]));
  },
  all() {
    this.whole();
    this.redraw();
  },
  phaseText(ns) {
    const c = this.c, names = [];
    for (let i = 0; i < c.phaseBegin.length && c.phaseBegin[i] <= ns; ++i) {
      if (c.phaseEnd[i] > ns) names.push(meta.phaseNames[c.phaseName[i]]);
    }
    return names.length ? names.join(" > ") : "outside phases";
  },
  /** Facts about a leaf, as [head lines, rows]. */
  facts(leaf, reserved) {
    const c = this.c, next = leaf + 1 < this.n ? c.event[leaf + 1] : meta.events, count = next - c.event[leaf];
    const head = [`${timeText(c.peakTime[leaf], 1)}, ${this.phaseText(c.peakTime[leaf])}`];
    head.push(count > 1 ? `highest of ${count.toLocaleString("en")} events from #${c.event[leaf].toLocaleString("en")}; lowest ${exactBytes(c.totalLow[leaf])}`
      : `event #${c.event[leaf].toLocaleString("en")}`);
    const rows = [[cssColor("reserved"), meta.isRun ? "held from the device" : "reserved", exactBytes(reserved)],
      [cssColor("allocated"), meta.isRun ? "in use" : "allocated", exactBytes(c.totalHigh[leaf])]];
    const parts = this.layers.map((layer) => [layer.color, layer.label, layer.values[leaf]]).filter((row) => row[2] > 0);
    parts.sort((a, b) => b[2] - a[2]);
    for (const [color, name, bytes] of parts) rows.push([color, name, exactBytes(bytes)]);
    return [head, rows];
  },
  hover(event) {
    const box = this.box, at = event.offsetX - (box ? box.left : 0);
    if (!box || at < 0 || at >= box.width || event.offsetY > box.top + box.height + 22) {
      hideTip();
      return;
    }
    const column = Math.min(this.samples.peak.length - 1, Math.floor(at / box.width * this.samples.peak.length));
    this.cursor = this.from + at / box.width * (this.to - this.from);
    showTip(event, ...this.facts(this.samples.peak[column], this.samples.reserved[column]));
    this.redraw();
  },
  /** Moves the cursor to the next change, for the keyboard. Text below the chart describes it. */
  stepCursor(by) {
    const now = this.leafAt(this.cursor === null ? this.from : this.cursor);
    const leaf = Math.max(0, Math.min(this.n - 1, now + by));
    this.cursor = this.starts()[leaf];
    if (this.cursor < this.from || this.cursor > this.to) {
      const half = (this.to - this.from) / 2;
      this.setView(this.cursor - half, this.cursor + half);
    }
    const [head, rows] = this.facts(leaf, this.c.reservedHigh[leaf]);
    byId("status").textContent = head.join("; ") + "; " + rows.map((row) => `${row[1]} ${row[2]}`).join("; ");
    this.redraw();
  },
  zoomToPhase(x) {
    const ns = this.toTime(x), c = this.c;
    let found = -1;
    for (let i = 0; i < c.phaseBegin.length && c.phaseBegin[i] <= ns; ++i) if (c.phaseEnd[i] > ns) found = i;
    if (found < 0) return this.zoom(0.25, x);
    const begin = this.fromTime(c.phaseBegin[found]), end = this.fromTime(c.phaseEnd[found]);
    const room = (end - begin) * 0.03;
    return this.setView(begin - room, end + room);
  },
  listen() {
    const canvas = this.canvas, pointers = new Map();
    const valueAt = (event) => this.from + (event.offsetX - this.box.left) / this.box.width * (this.to - this.from);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const delta = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || delta) / this.box.width);
      else this.zoom(Math.exp(delta * 0.0022), valueAt(event));
      this.hover(event);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event.offsetX);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return this.hover(event);
      hideTip();
      const before = [...pointers.values()], moved = event.offsetX - pointers.get(event.pointerId);
      pointers.set(event.pointerId, event.offsetX);
      if (pointers.size === 1) return this.pan(-moved / this.box.width);
      const after = [...pointers.values()], spread = Math.abs(after[0] - after[1]);
      return this.zoom(Math.abs(before[0] - before[1]) / Math.max(1, spread), valueAt({ offsetX: (after[0] + after[1]) / 2 }));
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      this.cursor = null;
      this.redraw();
    });
    canvas.addEventListener("dblclick", (event) => this.zoomToPhase(valueAt(event)));
    const keys = { ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), ArrowUp: () => this.zoom(0.8), ArrowDown: () => this.zoom(1.25),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1.6), 0: () => this.all(), t: () => this.showStep(), Home: () => this.all(),
      ",": () => this.stepCursor(-1), ".": () => this.stepCursor(1), s: () => this.setFigure(false), f: () => this.setFigure(true),
      e: () => this.setEvents(!this.events), y: () => this.setFitY(!this.fitY) };
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    const jump = (event) => {
      const box = this.overviewBox, all = this.last() - this.first(), half = (this.to - this.from) / 2;
      const middle = this.first() + (event.offsetX - box.left) / box.width * all;
      this.setView(middle - half, middle + half);
    };
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
    byId("viewStack").onclick = () => this.setFigure(false);
    byId("viewFigure").onclick = () => this.setFigure(true);
    byId("zoomIn").onclick = () => this.zoom(0.5);
    byId("zoomOut").onclick = () => this.zoom(2);
    byId("fit").onclick = () => this.all();
    byId("step").onclick = () => this.showStep();
    byId("step").hidden = !this.step;
    byId("axis").onclick = () => this.setEvents(!this.events);
    byId("fitY").onclick = () => this.setFitY(!this.fitY);
    byId("save").onclick = () => this.save();
    if (this.c.markTime.length === 0) byId("viewFigure").disabled = true;
    addEventListener("resize", () => this.redraw());
    this.setFigure(this.figure);
  },
  save() {
    this.canvas.toBlob((picture) => {
      const link = element("a");
      link.href = URL.createObjectURL(picture);
      link.download = "memory.png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  },
});
