// Curves of all tasks: loss and metrics, speed, CPU and memory; one x axis for all charts.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const KINDS = [
    { name: "loss", title: "Loss", format: Orch.number },
    { name: "steps_per_s", title: "Steps per second", format: Orch.number, fromZero: true },
    { name: "examples_per_s", title: "Examples per second", format: Orch.number, fromZero: true },
    { name: "cpu_percent", title: "CPU", format: Orch.percent, fromZero: true },
    { name: "memory_bytes", title: "Memory", format: Orch.bytes, fromZero: true, isBytes: true },
    { name: "gpu_percent", title: "GPU", format: Orch.percent, fromZero: true },
    { name: "gpu_memory_bytes", title: "GPU memory", format: Orch.bytes, fromZero: true, isBytes: true },
  ];
  const metricKind = (name) => ({ name: `metric ${name}`, title: name, format: Orch.number });
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
      this.series.sort(this.run.tasks().map((row) => row.task));
      const kinds = [KINDS[0], ...this.series.metrics.map(metricKind), ...KINDS.slice(1)];
      for (const kind of kinds) {
        if (this.charts.has(kind.name) || !this.series.has(kind.name)) continue;
        const chart = new Orch.Chart(this, kind);
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

  const shortTime = (seconds) => (Number.isInteger(seconds) ? Orch.offset(seconds, 0) : Orch.offset(seconds, Math.abs(seconds * 10 - Math.round(seconds * 10)) > 1e-6 ? 2 : 1));
})((window.Orch = window.Orch || {}));
