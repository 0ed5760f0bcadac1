// The list of runs.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const MOST = 300;

  Orch.RunsView = class {
    constructor(feed, head) {
      this.feed = feed;
      this.head = head;
      this.chosen = new Set();
      this.runs = [];
      this.search = el("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run", oninput: () => this.render() });
      this.compare = el("button", { type: "button", disabled: true, onclick: () => {
        Orch.go(`#/compare?${new URLSearchParams([...this.chosen].map((id) => ["run", id])).toString()}`);
      } }, "Compare");
      this.body = el("tbody");
      this.note = el("p.quiet.nothing", { role: "status" }, "Loading…");
      this.element = el("main.page", { id: "main", tabindex: "-1" },
        el("div.section-head", null, el("h1", null, "Runs"), this.search, el("span.grow"), this.compare),
        el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Runs" }, this.table = el("table.runs", null, el("thead", null, el("tr", null,
          ["", "State", "Run", "Command", "Started", "Duration", "Tasks", "Loss"].map((text, at) => el(`th${at > 4 ? ".right" : ""}`, { scope: "col" },
            text || el("span.hidden-text", null, "Compare"))))), this.body)), this.note);
      this.rowOf = new Map();
    }

    close() {}
    setRuns(runs, problem) {
      this.runs = runs;
      this.head.problem(problem);
      this.render();
    }

    render() {
      const wanted = this.search.value.trim().toLowerCase();
      const fits = (run) => !wanted || [run.name, run.id, run.command, run.directory, run.state].some((text) => String(text || "").toLowerCase().includes(wanted));
      const shown = this.runs.filter(fits);
      const rows = shown.slice(0, MOST).map((run) => this.row(run));
      // Rows that are the same keep their elements: a click does not miss.
      if (rows.length !== this.body.children.length || rows.some((row, at) => this.body.children[at] !== row)) this.body.replaceChildren(...rows);
      this.table.hidden = !rows.length;
      const none = this.head.problems.hidden ? "No runs yet. Start one: orch up --workers 2 -- train.py" : "";
      setText(this.note, !this.runs.length ? none : !shown.length ? "No run fits."
        : shown.length > MOST ? `${Orch.count(shown.length - MOST)} older runs are not shown; a search finds them.` : "");
      this.note.hidden = !this.note.textContent;
    }

    row(run) {
      let row = this.rowOf.get(run.id);
      if (!row) {
        const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, onchange: () => {
          if (box.checked) this.chosen.add(run.id); else this.chosen.delete(run.id);
          this.compare.disabled = this.chosen.size < 2;
          setText(this.compare, this.chosen.size > 1 ? `Compare ${this.chosen.size} runs` : "Compare");
        } });
        row = el("tr", null, el("td", null, box), el("td"), el("td", null, el("a", { href: Orch.address(run.id), title: run.id }, run.name || run.id)),
          el("td.command", null, el("code", { title: run.directory || "" }, run.command || run.problem || "")), el("td.number"), el("td.number.right"), el("td.number.right"), el("td.number.right"));
        this.rowOf.set(run.id, row);
      }
      const cells = row.children;
      if (row.state !== run.state) { row.state = run.state; Orch.fill(cells[1], Orch.stateMark(run.state)); }
      setText(cells[4], Orch.date(run.started_at));
      setText(cells[5], Orch.duration(run.live || !Orch.isNumber(run.took_s) ? run.uptime_s : run.took_s));
      setText(cells[6], Orch.count(run.tasks));
      setText(cells[7], run.bad_loss || Orch.number(run.loss));
      return row;
    }
  };
})((window.Orch = window.Orch || {}));
