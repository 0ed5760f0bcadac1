// One chart of the curves: its lines, the values under the pointer, zoom by mouse and keys.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const HEIGHT = 190, MOST_SLOTS = 700, MOST_HOVERED = 12;

  Orch.Chart = class {
    constructor(curves, kind) {
      this.curves = curves;
      this.kind = kind;
      this.plot = null;
      this.last = el("span.last");
      this.box = el("div.plot", { tabindex: "0", role: "img", "aria-label": kind.title, onkeydown: (event) => this.onKey(event) });
      this.tip = el("div.tip", { hidden: true, "aria-hidden": "true" });
      this.element = el("figure.chart", null,
        el("figcaption", null, el("span.title", null, kind.title), this.last), this.box, this.tip);
    }

    draw() {
      const { curves, kind } = this;
      const width = this.box.clientWidth;
      if (!width) return;
      const [low, high] = curves.range();
      const many = curves.series.tasks.size > Orch.MOST_LINES;
      const size = Math.max(60, Math.min(many ? 240 : MOST_SLOTS, width));
      const { xs, lines } = curves.series.chart(kind.name, curves.axis, low, high, size, many ? null : curves.shown());
      let drawn, bands = [];
      if (many) {
        const { low: least, middle, high: most } = Orch.SeriesStore.band(lines, size);
        drawn = [{ label: "maximum", values: most, role: "edge" }, { label: "minimum", values: least, role: "edge" },
          { label: "median", values: middle, role: "middle" }];
        for (const line of lines) if (curves.chosen.has(line.tasks[0])) drawn.push({ ...line, label: line.tasks[0] });
        bands = [{ series: [1, 2], fill: Orch.cssValue("--band") }];
      } else {
        drawn = lines.map((line) => ({ ...line, label: curves.label(line.tasks) }));
      }
      this.lines = drawn;
      this.xs = xs;
      const data = [xs, ...drawn.map((line) => line.values)];
      const signature = JSON.stringify([drawn.map((line) => line.label), curves.axis, curves.isLog, curves.scheme]);
      if (!this.plot || signature !== this.signature) {
        this.close();
        this.signature = signature;
        this.make(width, data, drawn, bands, low, high);
      } else {
        if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
        this.limits = [low, high];
        this.plot.setData(data);
      }
      this.describe();
    }

    make(width, data, drawn, bands, low, high) {
      const { curves, kind } = this;
      this.limits = [low, high];
      const quiet = Orch.cssValue("--text-quiet"), grid = { stroke: Orch.cssValue("--grid"), width: 1 }, font = `11px ${Orch.cssValue("--font")}`;
      const axis = { stroke: quiet, grid, ticks: { show: false }, font, gap: 4 };
      const isLog = curves.isLog && kind.name === "loss";
      this.plot = new uPlot({
        width, height: HEIGHT, padding: [8, 10, 0, 0], legend: { show: false }, bands,
        cursor: {
          y: false, sync: { key: curves.syncKey, setSeries: false }, points: { size: 6 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => { curves.zoom(null); } },
        },
        scales: {
          x: { time: false, range: () => this.limits },
          y: { distr: isLog ? 3 : 1, range: isLog ? undefined : (_, least, most) => this.limitsOfY(least, most) },
        },
        axes: [
          { ...axis, size: 26, space: 64, ...(curves.axis === "time" ? { incrs: Orch.TIME_STEPS } : {}), values: (_, splits) => splits.map((value) => curves.xText(value)) },
          { ...axis, size: 54, space: 34, values: (_, splits, __, ___, step) => splits.map((value) => (value === null ? "" : tick(kind, value, step))),
            ...(kind.isBytes ? { splits: (_, __, least, most) => binarySplits(least, most) } : {}) },
        ],
        series: [{}, ...drawn.map((line) => this.seriesOf(line))],
        hooks: {
          setSelect: [(plot) => this.onSelect(plot)],
          setCursor: [(plot) => this.onCursor(plot)],
          draw: [(plot) => this.drawMarks(plot)],
        },
      }, data, this.box);
    }

    seriesOf(line) {
      if (line.role) {
        const stroke = Orch.cssValue(line.role === "edge" ? "--band-edge" : "--accent");
        return { stroke, width: line.role === "edge" ? 1 : 1.75, points: { show: false } };
      }
      const number = this.curves.colour(line.tasks[0]);
      return { stroke: Orch.cssValue(`--line-${number % 10}`), width: 1.5, dash: number >= 5 ? [6, 3] : undefined, points: { size: 5 } };
    }

    limitsOfY(least, most) {
      if (least === null) return [0, 1];
      if (this.kind.fromZero) return [0, most > 0 ? most * 1.1 : 1];
      const space = (most - least) * 0.08 || Math.abs(most) * 0.1 || 1;
      return [least - space, most + space];
    }

    drawMarks(plot) {
      const { curves } = this;
      if (curves.axis !== "time") return;
      const { ctx, bbox } = plot;
      ctx.save();
      for (const mark of curves.marks()) {
        if (mark.time < this.limits[0] || mark.time > this.limits[1]) continue;
        const x = Math.round(plot.valToPos(mark.time, "x", true)) + 0.5;
        ctx.strokeStyle = Orch.cssValue(mark.kind === "nan" ? "--bad" : "--text-faint");
        ctx.setLineDash(mark.kind === "nan" ? [] : [3, 3]);
        ctx.lineWidth = mark.kind === "nan" ? 2 : 1;
        ctx.beginPath();
        ctx.moveTo(x, mark.kind === "nan" ? bbox.top + bbox.height - 10 : bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    }

    onSelect(plot) {
      const { left, width } = plot.select;
      if (width < 4) return;
      this.curves.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }

    onCursor(plot) {
      const { idx, left, top, event } = plot.cursor;
      const isHere = this.box.matches(":hover") || document.activeElement === this.box;
      if (!isHere || idx === null || idx === undefined || left < 0) { this.tip.hidden = true; return; }
      const rows = [];
      for (const line of this.lines) {
        const value = this.nearest(line.values, idx);
        if (value !== null) rows.push({ line, value });
      }
      if (!rows.length) { this.tip.hidden = true; return; }
      rows.sort((one, other) => other.value - one.value);
      Orch.fill(this.tip, el("div.tip-x", null, this.curves.xLabel(this.xs[idx])),
        rows.slice(0, MOST_HOVERED).map(({ line, value }) => el("div.tip-row", null,
          el(`span.swatch.${line.role ? "band" : Orch.colourClass(this.curves.colour(line.tasks[0]))}`),
          el("span.tip-name", null, line.label), el("span.tip-value", null, this.kind.format(value)))),
        rows.length > MOST_HOVERED ? el("div.quiet", null, `${rows.length - MOST_HOVERED} more`) : null);
      this.tip.hidden = false;
      const { offsetLeft, clientWidth } = this.box, wide = this.tip.offsetWidth;
      const x = left + 54;
      this.tip.style.left = `${offsetLeft + (x + wide + 24 > clientWidth ? Math.max(0, x - wide - 12) : x + 12)}px`;
      this.tip.style.top = `${this.box.offsetTop + Math.max(0, Math.min(top || 0, 40)) + (event ? 0 : 8)}px`;
    }

    // The value of the slot, or of the next ones to its left.
    nearest(values, idx) {
      for (let at = idx; at >= 0 && at > idx - 60; at -= 1) {
        if (values[at] === null) return null;
        if (values[at] !== undefined) return values[at];
      }
      return null;
    }

    onKey(event) {
      if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const [low, high] = this.limits, third = (high - low) / 3;
      if (event.key === "+" || event.key === "=") this.curves.zoom([low + third / 2, high - third / 2]);
      else if (event.key === "-") this.curves.zoom([low - third, high + third]);
      else if (event.key === "0" || event.key === "Escape") this.curves.zoom(null);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const wide = this.plot.over.clientWidth, step = event.key === "ArrowLeft" ? -8 : 8;
        const left = this.plot.cursor.left >= 0 ? this.plot.cursor.left : step < 0 ? wide : 0;
        this.plot.setCursor({ left: Math.max(0, Math.min(wide - 1, left + step)), top: 20 });
      } else return;
      event.preventDefault();
    }

    describe() {
      const lasts = this.lines.map((line) => {
        const at = line.values.findLastIndex(Orch.isNumber);
        return at < 0 ? null : { line, value: line.values[at] };
      }).filter(Boolean);
      const shown = lasts.find(({ line }) => line.role === "middle") || lasts[0];
      setText(this.last, shown ? this.kind.format(shown.value) : "");
      const texts = lasts.slice(0, 8).map(({ line, value }) => `${line.label} ${this.kind.format(value)}`);
      this.box.setAttribute("aria-label", Orch.plain(`${this.kind.title}; last values: ${texts.join(", ") || "none"}`));
    }

    close() { if (this.plot) this.plot.destroy(); this.plot = null; }
  };

  // Numbers of one axis have the same number of decimals.
  function tick(kind, value, step) {
    const size = Math.abs(value);
    const isPercent = kind.format === Orch.percent;
    if (kind.isBytes || (kind.format !== Orch.number && !isPercent) || !step || size >= 1e5 || step < 1e-4) return kind.format(value);
    // As many as the distance of the lines needs: 0.25 needs two.
    let decimals = 0;
    while (decimals < 6 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals += 1;
    return value.toFixed(decimals) + (isPercent ? " %" : "");
  }

  // Round sizes: multiples of a power of 2.
  function binarySplits(least, most) {
    let step = 2 ** Math.ceil(Math.log2(Math.max(1, (most - least) / 5)));
    const splits = [];
    for (let value = Math.ceil(least / step) * step; value <= most && splits.length < 12; value += step) splits.push(value);
    return splits;
  }
})((window.Orch = window.Orch || {}));
