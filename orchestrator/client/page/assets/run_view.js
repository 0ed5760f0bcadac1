// The page of one run: outcome, tasks, curves, timeline; logs; failure; plan.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const TABS = [["", "Overview"], ["logs", "Logs"], ["failure", "Failures"], ["plan", "Plan"]];

  Orch.RunView = class {
    constructor(feed, id, head) {
      this.feed = feed;
      this.id = id;
      this.head = head;
      this.doc = null;
      this.element = el("main.page.run", { id: "main", tabindex: "-1" }, el("p.quiet.nothing", { role: "status" }, "Loading…"));
      this.waitingLines = [];
      this.drawOverview = Orch.atMostEvery(250, () => this.renderOverview());
      this.drawCurves = Orch.atMostEvery(1000, () => { if (this.curves) this.curves.update(); });
      this.drawTimeline = Orch.atMostEvery(1000, () => { if (this.timeline) this.timeline.update(); });
      this.drawTexts = Orch.atMostEvery(1000, () => this.renderTexts());
      this.closeFeed = feed.open(id, {
        document: (doc) => this.setDocument(doc),
        change: (delta) => this.change(delta),
        lines: (rows, where) => { if (this.logs) this.logs.add(rows, where); else this.waitingLines.push([rows, where]); },
        problem: (text) => this.problem(text),
      });
      if (feed.live) this.clock = setInterval(() => this.tick(), 1000);
    }

    close() {
      if (this.closeFeed) this.closeFeed();
      clearInterval(this.clock);
      this.closeParts();
    }
    closeParts() { for (const part of [this.table, this.curves, this.timeline, this.logs]) if (part) part.close(); }

    problem(text) {
      if (!this.doc && text) Orch.fill(this.element, el("p.problem.nothing", { role: "alert" }, text));
      else this.head.problem(text);
    }

    // A document that comes again (the feed was interrupted) replaces the first one.
    setDocument(doc) {
      this.closeParts();
      this.doc = doc;
      this.received = performance.now();
      for (const row of doc.tasks || []) row.seen = this.received;
      this.build();
      this.show(Orch.route());
    }

    // Seconds since the run's start, now.
    now() { return this.doc.run.live ? this.doc.run.uptime_s + (performance.now() - this.received) / 1000 : this.doc.run.uptime_s; }

    build() {
      const { doc, feed } = this;
      this.model = {
        id: this.id, live: () => Boolean(this.doc.run.live), now: () => this.now(),
        tasks: () => this.doc.tasks || [], timeline: () => this.doc.timeline || {},
        marks: () => (this.doc.timeline && this.doc.timeline.marks) || [],
        startedAt: () => this.doc.run.started_at || 0,
        onKill: feed.live ? (task) => Orch.confirmOrder(feed, this.doc.run, "kill", task) : null,
      };
      this.series = new Orch.SeriesStore(doc.series || {});
      this.table = new Orch.TaskTable(this.model);
      this.curves = new Orch.Curves(this.model, this.series, (range) => this.timeline.zoom(range, true));
      this.timeline = new Orch.Timeline(this.model, (range) => {
        if (this.curves.axis === "time") { this.curves.zoomed = range; this.curves.resetButton.hidden = !range; this.curves.refresh(); }
      });
      this.logs = new Orch.LogView({ ...this.model, live: Boolean(doc.run.live) });
      this.outcome = el("div");
      this.numbers = el("dl.numbers");
      const overview = el("div.overview", null, this.outcome, this.numbers, this.table.element, this.curves.element, this.timeline.element);
      this.parts = { "": overview, logs: this.logs.element, failure: el("div"), plan: el("div") };
      Orch.fill(this.element, Object.values(this.parts));
      this.renderOverview();
      this.renderTexts();
      for (const [rows, where] of this.waitingLines.splice(0)) this.logs.add(rows, where);
    }

    renderOverview() {
      const { doc } = this;
      const key = JSON.stringify([doc.end, doc.run.remarks]);
      if (key !== this.outcomeKey || !this.outcome.firstChild) {
        this.outcomeKey = key;
        Orch.fill(this.outcome, Orch.outcome(doc));
      }
      const items = Orch.numbers({ ...doc, run: { ...doc.run, uptime_s: this.now() } });
      const names = items.map(([name]) => name).join();
      if (names !== this.numberNames) {
        this.numberNames = names;
        Orch.fill(this.numbers, items.map(([name]) => el(name === "Progress" ? "div.wide" : "div", null, el("dt", null, name), el("dd"))));
      }
      items.forEach(([, value], at) => setText(this.numbers.children[at].lastChild, value));
      this.table.update();
      this.renderHead();
    }

    renderHead() {
      const { run } = this.doc;
      const tabs = TABS.filter(([tab]) => tab !== "failure" || Orch.hasFailure(this.doc) || this.tab === "failure");
      this.head.show(run, tabs.map(([tab, text]) => ({ tab, text, address: Orch.address(run.id, tab) })), this.tab || "",
        this.feed.live && run.live ? (verb) => Orch.confirmOrder(this.feed, run, verb) : null);
    }

    renderTexts() {
      const { doc } = this;
      const texts = { failure: [() => Orch.failureTab(doc), [doc.end, doc.stacks]], plan: [() => Orch.planTab(doc), [doc.plan, doc.hosts]] };
      this.textKeys = this.textKeys || {};
      for (const [name, [make, data]] of Object.entries(texts)) {
        // Drawn again only if it has changed: what was unfolded stays so.
        const key = JSON.stringify(data);
        if (this.textKeys[name] === key && this.parts[name].firstChild) continue;
        this.textKeys[name] = key;
        Orch.fill(this.parts[name], make());
      }
    }

    tick() {
      if (!this.doc || !this.doc.run.live || document.hidden) return;
      this.drawOverview();
      this.drawTimeline();
    }

    change(delta) {
      if (!this.doc) return;
      const { tasks, series, ...rest } = delta;
      Object.assign(this.doc, rest);
      if (rest.run) this.received = performance.now();
      if (tasks) this.mergeTasks(tasks);
      if (series) { this.series.append(series); this.drawCurves(); }
      if (rest.timeline || tasks) this.drawTimeline();
      if (rest.end !== undefined || rest.stacks || rest.plan || rest.hosts) this.drawTexts();
      this.drawOverview();
    }

    mergeTasks(rows) {
      const known = new Map((this.doc.tasks || []).map((row, at) => [row.task, at]));
      const merged = [...(this.doc.tasks || [])];
      for (const row of rows) {
        const whole = { ...(known.has(row.task) ? merged[known.get(row.task)] : {}), ...row };
        // Since then its time goes on by this page's clock: rows that have not changed are not sent again.
        if (row.uptime_s !== undefined) whole.seen = performance.now();
        if (known.has(row.task)) merged[known.get(row.task)] = whole; else merged.push(whole);
      }
      this.doc.tasks = merged;
    }

    // Shows the tab of the address.
    show(route) {
      if (!this.doc) return;
      this.tab = route.tab in this.parts ? route.tab : "";
      for (const [tab, part] of Object.entries(this.parts)) part.hidden = tab !== this.tab;
      this.element.classList.toggle("fills", this.tab === "logs");
      document.title = Orch.plain(`${this.doc.run.name || this.doc.run.id} · orch`);
      this.renderHead();
      if (this.tab === "logs") this.showLines(route.query);
      if (this.tab === "") { this.curves.refresh(); this.timeline.update(); this.table.update(); }
    }

    showLines(query) {
      const task = query.get("task"), at = Number.parseFloat(query.get("at"));
      const key = query.toString();
      if (!key || key === this.linesOf) return;
      this.linesOf = key;
      if (task) this.logs.setTasks(new Set([task]));
      else if (Number.isFinite(at) && this.logs.chosen) this.logs.setTasks(null);
      if (query.get("q")) { this.logs.search.value = query.get("q"); this.logs.onSearch(); }
      if (Number.isFinite(at)) this.logs.jumpTo(at, query.get("near"));
    }
  };
})((window.Orch = window.Orch || {}));
