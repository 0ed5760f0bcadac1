// Starts the page: head, views by the address, keys.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;

  class Head {
    constructor(feed) {
      this.feed = feed;
      this.home = el("a.home", { href: "#/runs" }, "orch");
      this.name = el("span.run-name");
      this.state = el("span.run-state");
      this.tabs = el("nav.tabs", { "aria-label": "Parts of the run" });
      this.actions = el("div.actions");
      this.problems = el("div.problem-bar", { role: "status", hidden: true });
      this.element = el("header.head", null, el("a.skip", { href: "#main", onclick: (event) => {
        event.preventDefault();
        document.getElementById("main").focus();
      } }, "Skip to the content"), el("div.title", null, this.home, this.name, this.state), this.tabs, el("span.grow"), this.actions,
        el("button.icon.keys-button", { type: "button", "aria-label": "Keys", title: "Keys (?)", onclick: Orch.showKeys }, "?"));
    }

    clear() {
      this.key = this.stateKey = null;
      Orch.fill(this.name);
      Orch.fill(this.state);
      Orch.fill(this.tabs);
      Orch.fill(this.actions);
      this.problem("");
    }

    show(run, tabs, current, order) {
      setText(this.name, run.name || run.id);
      this.name.title = Orch.plain(run.id);
      if (this.stateKey !== run.state) { this.stateKey = run.state; Orch.fill(this.state, Orch.stateMark(run.state)); }
      const key = JSON.stringify([tabs, current, Boolean(order)]);
      if (key === this.key) return;
      this.key = key;
      Orch.fill(this.tabs, tabs.map(({ text, tab, address }) => el("a", { href: address, "aria-current": tab === current ? "page" : null }, text)));
      Orch.fill(this.actions, order ? [["stacks", "Stacks…"], ["restart", "Restart…"], ["stop", "Stop…"]].map(([verb, text]) =>
        el("button", { type: "button", onclick: () => order(verb) }, text)) : null);
    }

    problem(text) {
      this.problems.hidden = !text;
      setText(this.problems, text || "");
    }
  }

  class Page {
    constructor(feed) {
      this.feed = feed;
      this.head = new Head(feed);
      this.view = null;
      this.runs = null;
      this.body = document.getElementById("page");
      this.body.replaceChildren(this.head.element, this.head.problems);
      document.body.appendChild(el("div.said", { id: "said", role: "status", hidden: true }));
      addEventListener("hashchange", () => this.show());
      addEventListener("keydown", (event) => this.onKey(event));
      feed.runs((runs, problem) => this.setRuns(runs, problem || ""));
    }

    // `problem`: why there are no runs. The page of a run says it by itself.
    setRuns(runs, problem) {
      const isFirst = this.runs === null;
      this.runs = runs || this.runs || [];
      this.problem = problem;
      this.head.home.hidden = !this.feed.live && this.runs.length < 2;
      if (isFirst) this.show();
      else if (this.view && this.view.setRuns) this.view.setRuns(this.runs, problem);
    }

    show() {
      if (!this.runs) return;
      const route = Orch.route();
      let { view } = route;
      // A report of one run is its page; of several, their comparison.
      if (!view && !this.feed.live) {
        if (this.runs.length === 1) { view = "run"; route.run = this.runs[0].id; } else if (this.runs.length > 1) view = "compare";
      }
      const key = view === "run" ? `run ${route.run}` : view === "compare" ? `compare ${route.query}` : "runs";
      if (key !== this.key) {
        this.key = key;
        if (this.view) { this.view.close(); this.view.element.remove(); }
        this.head.clear();
        document.title = "orch";
        this.view = view === "run" ? new Orch.RunView(this.feed, route.run, this.head)
          : view === "compare" ? new Orch.CompareView(this.feed, route.query.getAll("run")) : new Orch.RunsView(this.feed, this.head);
        this.body.appendChild(this.view.element);
        if (this.view.setRuns) this.view.setRuns(this.runs, this.problem);
        scrollTo(0, 0);
      }
      if (this.view.show) this.view.show(route);
    }

    onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      const { view } = this, isRun = view instanceof Orch.RunView && view.doc;
      const then = this.afterG && performance.now() - this.afterG < 1500;
      this.afterG = null;
      if (then) {
        const tabs = { o: "", l: "logs", f: "failure", p: "plan" };
        if (event.key === "r") Orch.go("#/runs");
        else if (isRun && event.key in tabs) Orch.go(Orch.address(view.id, tabs[event.key]));
        else return;
      } else if (event.key === "g") {
        this.afterG = performance.now();
        return;
      } else if (event.key === "?") {
        Orch.showKeys();
      } else if (event.key === "/") {
        if (isRun) {
          if (view.tab !== "logs") { Orch.go(Orch.address(view.id, "logs")); setTimeout(() => view.logs.search.focus(), 50); } else view.logs.search.focus();
        } else if (view && view.search) view.search.focus();
      } else if (isRun && view.tab === "logs" && (event.key === "n" || event.key === "N")) {
        view.logs.step(event.key === "n" ? 1 : -1);
      } else if (isRun && view.tab === "logs" && event.key === "e") {
        view.logs.nextError();
      } else {
        return;
      }
      event.preventDefault();
    }
  }

  Orch.start = (feed) => { Orch.page = new Page(feed); };
  // The live page has a live feed; a report has its runs in itself.
  Orch.start("live" in document.body.dataset ? Orch.liveFeed() : Orch.reportFeed());
})((window.Orch = window.Orch || {}));
