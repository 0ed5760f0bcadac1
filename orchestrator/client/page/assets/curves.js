// Curves of all tasks: loss and metrics, speed, CPU and memory; one x axis for all charts.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const HEIGHT = 190, MOST_SLOTS = 700, MOST_HOVERED = 12;

  const KINDS = [
    { name: "loss", title: "Loss", format: Orch.number },
    { name: "steps_per_s", title: "Steps per second", format: Orch.number, fromZero: true },
    { name: "examples_per_s", title: "Examples per second", format: Orch.number, fromZero: true },
    { name: "cpu_percent", title: "CPU", format: Orch.percent, fromZero: true },
    { name: "memory_bytes", title: "Memory", format: Orch.bytes, fromZero: true, isBytes: true },
  ];
  const metricKind = (name) => ({ name: `metric ${name}`, title: name, format: Orch.number });
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  class Chart {
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
        bands = [{ series: [1, 2], fill: css("--band") }];
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
      const quiet = css("--text-quiet"), grid = { stroke: css("--grid"), width: 1 }, font = `11px ${css("--font")}`;
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
          { ...axis, size: 26, space: 64, values: (_, splits) => splits.map((value) => curves.xText(value)) },
          { ...axis, size: 54, space: 34, values: (_, splits) => splits.map((value) => (value === null ? "" : kind.format(value))),
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
        const stroke = css(line.role === "edge" ? "--band-edge" : "--accent");
        return { stroke, width: line.role === "edge" ? 1 : 1.75, points: { show: false } };
      }
      const number = this.curves.colour(line.tasks[0]);
      return { stroke: css(`--line-${number % 10}`), width: 1.5, dash: number >= 5 ? [6, 3] : undefined, points: { size: 5 } };
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
        ctx.strokeStyle = css(mark.kind === "nan" ? "--bad" : "--text-faint");
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
  }

  // Round sizes: multiples of a power of 2.
  function binarySplits(least, most) {
    let step = 2 ** Math.ceil(Math.log2(Math.max(1, (most - least) / 5)));
    const splits = [];
    for (let value = Math.ceil(least / step) * step; value <= most && splits.length < 12; value += step) splits.push(value);
    return splits;
  }

  let groups = 0;

  Orch.Curves = class {
    // run: { tasks(), marks(), live, nameLabel? }; onZoom([low, high] | null) while the x axis is time.
    constructor(run, series, onZoom) {
      this.run = run;
      this.series = series;
      this.onZoom = onZoom || (() => {});
      this.axis = "time";
      this.isLog = false;
      this.zoomed = null;
      this.hidden = new Set();
      this.chosen = new Set();
      this.charts = new Map();
      this.syncKey = `curves-${(groups += 1)}`;
      this.visible = new Set();
      this.dirty = new Set();
      this.build();
      this.observer = new IntersectionObserver((entries) => {
        for (const { target, isIntersecting } of entries) {
          if (isIntersecting) this.visible.add(target); else this.visible.delete(target);
        }
        this.drawNext();
      }, { rootMargin: "300px" });
      this.sizes = new ResizeObserver(() => this.refresh());
      this.sizes.observe(this.grid);
      this.darkness = matchMedia("(prefers-color-scheme: dark)");
      this.onScheme = () => { this.scheme = this.darkness.matches; this.refresh(); };
      this.darkness.addEventListener("change", this.onScheme);
      this.update();
    }

    build() {
      this.grid = el("div.charts");
      this.axisButtons = [["time", "Time"], ["step", "Step"]].map(([axis, text]) => el("button",
        { type: "button", "aria-pressed": String(axis === this.axis), onclick: () => this.setAxis(axis) }, text));
      this.logButton = el("button.toggle", { type: "button", "aria-pressed": "false", title: "Logarithmic loss", onclick: () => {
        this.isLog = !this.isLog;
        this.logButton.setAttribute("aria-pressed", String(this.isLog));
        this.refresh();
      } }, "Log");
      this.resetButton = el("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Reset zoom");
      this.legend = el("div.legend", { role: "group", "aria-label": "Tasks in the curves" });
      this.values = el("details.values", { ontoggle: () => this.renderValues() }, el("summary", null, "Last values as a table"),
        this.table = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Last values" }));
      this.element = el("section.curves", { "aria-label": "Curves" },
        el("div.section-head", null, el("h2", null, "Curves"),
          el("div.segments", { role: "group", "aria-label": "Horizontal axis" }, this.axisButtons), this.logButton,
          this.resetButton, el("span.grow"), this.legend), this.grid, this.values);
    }

    close() {
      this.observer.disconnect();
      this.sizes.disconnect();
      this.darkness.removeEventListener("change", this.onScheme);
      for (const chart of this.charts.values()) chart.close();
    }

    colour(task) {
      if (!this.colours || this.colours.size !== this.run.tasks().length) {
        this.colours = new Map(this.run.tasks().map((row) => [row.task, row.colour || 0]));
      }
      return this.colours.get(task) || 0;
    }
    label(tasks) { return this.run.nameLabel ? tasks.map(this.run.nameLabel).join(", ") : Orch.taskNames(tasks); }
    shown() { return this.hidden.size ? new Set([...this.series.tasks.keys()].filter((task) => !this.hidden.has(task))) : null; }
    marks() { return this.run.marks().filter((mark) => mark.kind === "nan" || mark.kind === "restart" || (mark.kind === "attempt" && mark.time > 0.5)); }
    xText(value) { return value === null ? "" : this.axis === "time" ? shortTime(value) : Orch.count(value); }
    xLabel(value) { return this.axis === "time" ? Orch.offset(value, 1) : `step ${Orch.count(value)}`; }

    range() {
      const whole = this.series.range(this.axis) || [0, 1];
      if (whole[0] === whole[1]) whole[1] = whole[0] + 1;
      if (!this.zoomed) return whole;
      return [Math.max(whole[0], this.zoomed[0]), Math.min(whole[1], this.zoomed[1])];
    }

    zoom(range) {
      const whole = this.series.range(this.axis);
      if (range && whole && range[0] <= whole[0] && range[1] >= whole[1]) range = null;
      if (range && !(range[1] - range[0] > 1e-3)) return;
      this.zoomed = range;
      this.resetButton.hidden = !range;
      this.refresh();
      if (this.axis === "time") this.onZoom(range);
    }

    setAxis(axis) {
      if (this.axis === "time" && this.zoomed) this.onZoom(null);
      this.axis = axis;
      this.axisButtons.forEach((button, at) => button.setAttribute("aria-pressed", String((at === 0) === (axis === "time"))));
      this.zoomed = null;
      this.resetButton.hidden = true;
      this.refresh();
    }

    // New rows, or new metrics: charts that are there stay where they are.
    update() {
      const kinds = [KINDS[0], ...this.series.metrics.map(metricKind), ...KINDS.slice(1)];
      for (const kind of kinds) {
        if (this.charts.has(kind.name) || !this.series.has(kind.name)) continue;
        const chart = new Chart(this, kind);
        this.charts.set(kind.name, chart);
        const order = kinds.map(({ name }) => name);
        const after = [...this.charts.keys()].filter((name) => order.indexOf(name) > order.indexOf(kind.name));
        const next = after.sort((one, other) => order.indexOf(one) - order.indexOf(other))[0];
        this.grid.insertBefore(chart.element, next ? this.charts.get(next).element : null);
        chart.element.chart = chart;
        this.observer.observe(chart.element);
      }
      this.element.hidden = !this.charts.size;
      const hasSteps = this.series.has("step");
      this.axisButtons[1].disabled = !hasSteps;
      this.logButton.hidden = !this.charts.has("loss");
      this.renderLegend();
      this.refresh();
      if (this.values.open) this.renderValues();
    }

    refresh() {
      this.scheme = this.darkness.matches;
      for (const chart of this.charts.values()) this.dirty.add(chart);
      this.drawNext();
    }

    // One chart a task of the event loop: the page answers in between.
    drawNext() {
      if (this.isDue) return;
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        for (const chart of this.dirty) {
          if (!this.visible.has(chart.element)) continue;
          this.dirty.delete(chart);
          chart.draw();
          if ([...this.dirty].some((other) => this.visible.has(other.element))) this.drawNext();
          return;
        }
      });
    }

    renderLegend() {
      const names = [...this.series.tasks.keys()];
      const signature = names.join(" ") + [...this.chosen].join(" ");
      if (signature === this.legendOf) return;
      this.legendOf = signature;
      if (names.length > Orch.MOST_LINES) return this.renderChoice(names);
      if (names.length < 2) return Orch.fill(this.legend);
      return Orch.fill(this.legend, names.map((name) => el("button.chip", { type: "button",
        "aria-pressed": String(!this.hidden.has(name)), onclick: (event) => {
          if (!this.hidden.delete(name)) this.hidden.add(name);
          event.currentTarget.setAttribute("aria-pressed", String(!this.hidden.has(name)));
          this.refresh();
        } }, el(`span.swatch.${Orch.colourClass(this.colour(name))}`), this.label([name]))));
    }

    // Many tasks: the band of all, and the lines of those that are named here.
    renderChoice(names) {
      const input = el("input", { type: "search", placeholder: "Add a task", "aria-label": "Add a task's line", onkeydown: (event) => {
        if (event.key !== "Enter") return;
        const name = names.find((name) => name === input.value.trim()) || names.find((name) => name.endsWith(`:${input.value.trim()}`));
        if (!name) return;
        this.chosen.add(name);
        this.renderLegend();
        this.refresh();
      } });
      return Orch.fill(this.legend, el("span.quiet", null, `minimum, median, maximum of ${Orch.count(names.length)} tasks`),
        [...this.chosen].map((name) => el("button.chip", { type: "button", "aria-pressed": "true", title: "Remove", onclick: () => {
          this.chosen.delete(name);
          this.renderLegend();
          this.refresh();
        } }, el(`span.swatch.${Orch.colourClass(this.colour(name))}`), name)), input);
    }

    renderValues() {
      if (!this.values.open) return;
      const kinds = [...this.charts.values()].map((chart) => chart.kind);
      const names = [...this.series.tasks.keys()];
      Orch.fill(this.table, el("table", null,
        el("thead", null, el("tr", null, el("th", { scope: "col" }, "Task"), kinds.map((kind) => el("th", { scope: "col" }, kind.title)))),
        el("tbody", null, names.slice(0, 200).map((name) => el("tr", null, el("th", { scope: "row" }, this.label([name])),
          kinds.map((kind) => el("td", null, kind.format(this.series.last(name, kind.name)))))))),
        names.length > 200 ? el("p.quiet", null, `and ${names.length - 200} more`) : null);
    }
  };

  const shortTime = (seconds) => (Number.isInteger(seconds) ? Orch.offset(seconds, 0) : Orch.offset(seconds, seconds % 0.1 ? 2 : 1));
  Orch.cssValue = css;
})((window.Orch = window.Orch || {}));
