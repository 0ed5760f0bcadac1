// The timeline: a row a task, spans of what it did, marks of what happened. Only visible rows are drawn.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const ROW = 24, AXIS = 24, MOST_ROWS_SHOWN = 18, NEAR_PX = 7;
  const STATES = {
    starting: "starting", importing: "importing", waiting: "waiting", running: "running", serving: "serving", training: "training", evaluating: "evaluating",
    saving: "saving", silent: "silent", stopping: "stopping", "ended-ok": "ended", "ended-bad": "failed",
  };
  // Shape and colour of each mark. Frequent marks come first, so that rare ones are drawn over them.
  const MARKS = {
    ready: ["tick", "--text-quiet"], checkpoint: ["square", "--s-saving"], notice: ["circle", "--text-quiet"],
    exit: ["bar", "--text-quiet"], stacks: ["square", "--text"], signal: ["diamond", "--warn"], attempt: ["line", "--text-quiet"],
    teardown: ["line", "--text-faint"], end: ["line", "--text-quiet"], host: ["diamond", "--bad"], nan: ["circle", "--bad"],
    restart: ["triangle", "--accent"], fault: ["triangle", "--warn"], failure: ["cross", "--bad"],
  };
  const ORDER = Object.keys(MARKS);

  Orch.Timeline = class {
    // run: { id, tasks(), timeline(), now() }; onZoom([low, high] | null)
    constructor(run, onZoom) {
      this.run = run;
      this.onZoom = onZoom;
      this.zoomed = null;
      this.build();
      this.update();
    }

    build() {
      this.canvas = el("canvas", { "aria-hidden": "true" });
      this.tip = el("div.tip", { hidden: true, "aria-hidden": "true" });
      this.box = el("div.timeline-box", { tabindex: "0", role: "group", "aria-label": "Timeline. The events below say the same.",
        onkeydown: (event) => this.onKey(event) });
      this.frame = el("div.timeline-frame", null, this.box, this.canvas, this.tip);
      this.resetButton = el("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Reset zoom");
      this.legend = el("div.legend.states");
      this.events = el("div.events");
      this.element = el("section.timeline", { "aria-label": "Timeline" },
        el("div.section-head", null, el("h2", null, "Timeline"), this.resetButton, el("span.grow"), this.legend), this.frame, this.events);
      this.rows = new Orch.VirtualRows(this.box, {
        rowHeight: ROW, count: () => this.names.length, make: () => el("a.timeline-row"),
        render: (row, at) => {
          const { task, colour } = this.names[at];
          row.className = `timeline-row who ${Orch.colourClass(colour)}`;
          setText(row, task);
          row.setAttribute("href", Orch.address(this.run.id, "logs", { task }));
        },
        drawn: () => this.paint(),
      });
      this.names = [];
      this.box.addEventListener("pointermove", (event) => this.onMove(event));
      this.box.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      this.box.addEventListener("pointerdown", (event) => this.onDown(event));
      this.box.addEventListener("dblclick", () => this.zoom(null));
      this.sizes = new ResizeObserver(() => this.rows.draw());
      this.sizes.observe(this.frame);
      this.darkness = matchMedia("(prefers-color-scheme: dark)");
      this.onScheme = () => this.rows.draw();
      this.darkness.addEventListener("change", this.onScheme);
    }

    close() {
      this.rows.close();
      this.sizes.disconnect();
      this.darkness.removeEventListener("change", this.onScheme);
    }

    update() {
      const timeline = this.run.timeline();
      if (timeline !== this.known) {
        this.known = timeline;
        this.spans = new Map();
        for (const span of timeline.spans || []) {
          if (!this.spans.has(span.task)) this.spans.set(span.task, []);
          this.spans.get(span.task).push(span);
        }
        this.marks = [...(timeline.marks || [])].sort((one, other) => ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind));
        this.marksOf = new Map();
        for (const mark of this.marks) {
          if (!this.marksOf.has(mark.task)) this.marksOf.set(mark.task, []);
          this.marksOf.get(mark.task).push(mark);
        }
        this.renderLegend();
        // Marks are only added. Drawn again only then: a link of the list keeps the focus.
        if (this.marks.length !== this.drawnMarks) this.renderEvents();
      }
      this.names = this.run.tasks();
      this.element.hidden = !this.names.length || !((timeline.spans || []).length + (timeline.marks || []).length);
      this.frame.style.height = `${AXIS + Math.min(this.names.length, MOST_ROWS_SHOWN) * ROW + 4}px`;
      this.whole = [0, Math.max(0.1, this.lastTime())];
      this.rows.changed();
    }

    lastTime() {
      const { spans = [], marks = [] } = this.known;
      let last = this.run.live() ? this.run.now() : 0;
      for (const span of spans) last = Math.max(last, span.end === null ? 0 : span.end, span.start);
      for (const mark of marks) last = Math.max(last, mark.time);
      return last;
    }

    range() { return this.zoomed || this.whole; }

    zoom(range, isFromOutside) {
      this.zoomed = range && range[1] - range[0] > 0.01 ? [Math.max(0, range[0]), Math.min(this.whole[1], range[1])] : null;
      this.resetButton.hidden = !this.zoomed;
      this.rows.draw();
      if (!isFromOutside) this.onZoom(this.zoomed);
    }

    x(time) {
      const [low, high] = this.range();
      return ((time - low) / (high - low)) * this.wide;
    }
    time(x) {
      const [low, high] = this.range();
      return low + (x / this.wide) * (high - low);
    }

    paint() {
      const label = this.labelWidth(), ratio = devicePixelRatio || 1;
      const wide = Math.max(50, this.box.clientWidth - label - 8), high = this.frame.clientHeight;
      this.wide = wide;
      const { canvas } = this;
      canvas.style.left = `${label}px`;
      if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
        canvas.width = Math.round(wide * ratio);
        canvas.height = Math.round(high * ratio);
        canvas.style.width = `${wide}px`;
        canvas.style.height = `${high}px`;
      }
      const ctx = canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, wide, high);
      this.colours = new Map();
      ctx.font = `11px ${this.colour("--font")}`;
      ctx.textBaseline = "middle";
      this.paintAxis(ctx, high);
      ctx.save();
      ctx.beginPath();
      ctx.rect(0, AXIS, wide, high - AXIS);
      ctx.clip();
      const { first, from, until } = this.rows;
      for (let at = from; at < until; at += 1) {
        this.paintRow(ctx, this.names[at].task, AXIS + (at - first) * ROW);
      }
      ctx.restore();
      if (this.dragged) {
        ctx.fillStyle = this.colour("--selection");
        ctx.fillRect(Math.min(...this.dragged), 0, Math.abs(this.dragged[1] - this.dragged[0]), high);
      }
    }

    labelWidth() { return this.frame.clientWidth < 500 ? 84 : 120; }
    colour(name) {
      if (!this.colours.has(name)) this.colours.set(name, Orch.cssValue(name));
      return this.colours.get(name);
    }

    paintAxis(ctx, high) {
      const [low, top] = this.range();
      const step = niceStep((top - low) / Math.max(2, this.wide / 90));
      ctx.fillStyle = this.colour("--text-quiet");
      ctx.strokeStyle = this.colour("--grid");
      ctx.lineWidth = 1;
      for (let time = Math.ceil(low / step) * step; time <= top; time += step) {
        const x = Math.round(this.x(time)) + 0.5;
        ctx.beginPath();
        ctx.moveTo(x, AXIS - 4);
        ctx.lineTo(x, high);
        ctx.stroke();
        const text = Orch.offset(time, step < 0.1 ? 2 : step < 1 ? 1 : 0);
        const width = ctx.measureText(text).width;
        ctx.fillText(text, Math.max(0, Math.min(x - width / 2, this.wide - width)), AXIS / 2 - 1);
      }
      for (const mark of this.marksOf.get(null) || []) {
        const x = Math.round(this.x(mark.time)) + 0.5;
        if (x < 0 || x > this.wide) continue;
        ctx.strokeStyle = this.colour((MARKS[mark.kind] || MARKS.notice)[1]);
        ctx.setLineDash([2, 3]);
        ctx.beginPath();
        ctx.moveTo(x, AXIS - 4);
        ctx.lineTo(x, high);
        ctx.stroke();
        ctx.setLineDash([]);
      }
    }

    paintRow(ctx, task, y) {
      const [low, top] = this.range();
      const now = this.whole[1];
      let lastX = -10, lastState = "";
      for (const span of this.spans.get(task) || []) {
        const end = span.end === null ? now : span.end;
        if (end < low || span.start > top) continue;
        const x = Math.max(0, this.x(span.start)), until = Math.min(this.wide, this.x(end));
        // Spans within one pixel of each other look like one.
        if (until - lastX < 0.7 && span.state === lastState) continue;
        const width = Math.max(1.5, until - x);
        ctx.fillStyle = this.colour(`--s-${span.state}`) || this.colour("--s-starting");
        ctx.fillRect(x, y + 5, width - (width > 4 ? 1 : 0), ROW - 10);
        if (width > 44 && span.state !== "ended-ok") this.paintText(ctx, span, x, y, width);
        lastX = until;
        lastState = span.state;
      }
      for (const mark of this.marksOf.get(task) || []) {
        if (mark.time >= low && mark.time <= top) this.paintMark(ctx, mark, this.x(mark.time), y + ROW / 2);
      }
    }

    paintText(ctx, span, x, y, width) {
      const text = Orch.plain(span.text || STATES[span.state] || span.state);
      ctx.fillStyle = this.colour("--s-text");
      if (ctx.measureText(text).width <= width - 10) ctx.fillText(text, x + 5, y + ROW / 2 + 0.5);
    }

    paintMark(ctx, mark, x, y) {
      const [shape, colour] = MARKS[mark.kind] || MARKS.notice;
      ctx.fillStyle = this.colour(colour);
      ctx.strokeStyle = this.colour("--bg");
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      if (shape === "tick" || shape === "line" || shape === "bar") { ctx.rect(x - 1, y - 7, 2, 14); }
      else if (shape === "square") ctx.rect(x - 3, y - 3, 6, 6);
      else if (shape === "circle") ctx.arc(x, y, 3.5, 0, 2 * Math.PI);
      else if (shape === "diamond") { ctx.moveTo(x, y - 5); ctx.lineTo(x + 5, y); ctx.lineTo(x, y + 5); ctx.lineTo(x - 5, y); ctx.closePath(); }
      else if (shape === "triangle") { ctx.moveTo(x - 5, y - 5); ctx.lineTo(x + 5, y - 5); ctx.lineTo(x, y + 5); ctx.closePath(); }
      else {
        ctx.arc(x, y, 6, 0, 2 * Math.PI);
        ctx.stroke();
        ctx.fill();
        ctx.beginPath();
        ctx.moveTo(x - 2.5, y - 2.5); ctx.lineTo(x + 2.5, y + 2.5);
        ctx.moveTo(x + 2.5, y - 2.5); ctx.lineTo(x - 2.5, y + 2.5);
        ctx.stroke();
        return;
      }
      if (shape !== "tick") ctx.stroke();
      ctx.fill();
    }

    // What is under the pointer: { x, time, task, mark, span }.
    under(event) {
      const bounds = this.frame.getBoundingClientRect();
      const x = event.clientX - bounds.left - this.labelWidth();
      const row = Math.floor((event.clientY - bounds.top - AXIS) / ROW + this.rows.first);
      const task = this.names[row] ? this.names[row].task : null;
      const time = this.time(x);
      const nearest = (marks) => (marks || []).reduce((best, mark) => {
        const far = Math.abs(this.x(mark.time) - x);
        return far <= NEAR_PX && (!best || far <= Math.abs(this.x(best.time) - x)) ? mark : best;
      }, null);
      const mark = nearest(this.marksOf.get(task)) || nearest(this.marksOf.get(null));
      const end = (span) => (span.end === null ? this.whole[1] : span.end);
      const span = (this.spans.get(task) || []).find((span) => span.start <= time && time <= end(span)) || null;
      return { x, y: event.clientY - bounds.top, time, task, mark, span };
    }

    onMove(event) {
      if (event.target.closest("a")) { this.tip.hidden = true; return; }
      const found = this.under(event);
      if (this.dragged) { this.dragged[1] = Math.max(0, Math.min(this.wide, found.x)); this.rows.draw(); }
      if (found.x < 0 || (!found.mark && !found.span)) { this.tip.hidden = true; return; }
      const { mark, span } = found;
      const end = span && (span.end === null ? this.whole[1] : span.end);
      Orch.fill(this.tip,
        mark ? el("div", null, el("b", null, `${mark.task || "run"} `), mark.text || mark.kind, el("span.quiet", null, `  ${Orch.offset(mark.time)}`)) : null,
        span ? el("div", null, el("b", null, `${span.task} `), span.text || STATES[span.state] || span.state,
          el("span.quiet", null, `  ${Orch.offset(span.start, 1)} – ${span.end === null ? "now" : Orch.offset(span.end, 1)} · ${Orch.duration(end - span.start)}`)) : null);
      this.tip.hidden = false;
      const wide = this.tip.offsetWidth, left = found.x + this.labelWidth();
      this.tip.style.left = `${Math.max(0, Math.min(left + 12, this.frame.clientWidth - wide - 4))}px`;
      this.tip.style.top = `${found.y + 16}px`;
    }

    onDown(event) {
      if (event.button !== 0 || event.target.closest("a") || event.pointerType === "touch") {
        if (event.pointerType === "touch" && !event.target.closest("a")) this.jump(this.under(event));
        return;
      }
      const start = this.under(event);
      if (start.x < 0) return;
      this.dragged = [start.x, start.x];
      const finish = (up) => {
        removeEventListener("pointerup", finish);
        const [one, other] = this.dragged;
        this.dragged = null;
        if (Math.abs(other - one) >= 5) this.zoom([this.time(Math.min(one, other)), this.time(Math.max(one, other))]);
        else if (up.target === event.target) this.jump(start);
        this.rows.draw();
      };
      addEventListener("pointerup", finish);
    }

    jump({ mark, span, time, task }) {
      if (!mark && !span) return;
      const at = mark ? mark.time : time;
      Orch.go(Orch.address(this.run.id, "logs", { at: at.toFixed(3), near: (mark && mark.task) || task }));
    }

    onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.box) return;
      const [low, high] = this.range(), wide = high - low;
      if (event.key === "+" || event.key === "=") this.zoom([low + wide / 6, high - wide / 6]);
      else if (event.key === "-") this.zoom(wide * 1.5 >= this.whole[1] ? null : [low - wide / 4, high + wide / 4]);
      else if (event.key === "0" || event.key === "Escape") this.zoom(null);
      else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && this.zoomed) {
        const by = Math.max(-low, Math.min(this.whole[1] - high, event.key === "ArrowLeft" ? -wide / 5 : wide / 5));
        this.zoom([low + by, high + by]);
      } else return;
      event.preventDefault();
    }

    renderLegend() {
      const present = new Set((this.known.spans || []).map((span) => span.state));
      Orch.fill(this.legend, Object.entries(STATES).filter(([state]) => present.has(state)).map(([state, text]) =>
        el("span.state-name", null, el(`span.box.s-${state}`), text)));
    }

    // The marks as a list: the same without a mouse. Marks of one kind and text at one moment are one entry.
    renderEvents() {
      this.drawnMarks = this.marks.length;
      const entries = [];
      for (const mark of [...this.marks].sort((one, other) => one.time - other.time)) {
        const same = entries.slice(-6).find((entry) => entry.kind === mark.kind && entry.text === mark.text && mark.task
          && entry.tasks.length && mark.time - entry.time < 1);
        if (same) same.tasks.push(mark.task);
        else entries.push({ kind: mark.kind, text: mark.text, time: mark.time, tasks: mark.task ? [mark.task] : [] });
      }
      const most = this.showsAll ? Infinity : 40;
      const shown = entries.length > most ? [...entries.slice(0, most / 2), null, ...entries.slice(-most / 2)] : entries;
      Orch.fill(this.events, el("h3", null, "Events"), el("ol", null, shown.map((entry) => (entry ? this.eventRow(entry) : el("li", null,
        el("button", { type: "button", onclick: () => { this.showsAll = true; this.renderEvents(); } },
          `Show ${Orch.count(entries.length - most)} more`))))));
      this.events.hidden = !entries.length;
    }

    eventRow({ kind, text, time, tasks }) {
      // The task stands beside the text.
      if (tasks.length === 1 && text && text.startsWith(`${tasks[0]}: `)) text = text.slice(tasks[0].length + 2);
      const address = Orch.address(this.run.id, "logs", { at: time.toFixed(3), near: tasks[0] });
      return el(`li.event.k-${kind in MARKS ? kind : "notice"}`, null, el("a", { href: address },
        el("span.when", null, Orch.offset(time, 1)), el("span.event-task", null, tasks.length ? Orch.taskNames(tasks) : "run"),
        el("span.event-text", null, text || kind)));
    }
  };

  function niceStep(least) {
    const steps = Orch.TIME_STEPS;
    return steps.find((step) => step >= least) || Math.ceil(least / 86400) * 86400;
  }
})((window.Orch = window.Orch || {}));
