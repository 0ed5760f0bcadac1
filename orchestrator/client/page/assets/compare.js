// Several runs beside each other: curves over each other, what differs, and the last values.
(function (Orch) {
  "use strict";

  const { el } = Orch;

  Orch.CompareView = class {
    constructor(feed, ids) {
      this.element = el("main.page", { id: "main", tabindex: "-1" }, el("p.quiet.nothing", { role: "status" }, "Loading…"));
      feed.comparison(ids).then((found) => this.draw(found), (error) => this.draw(null, error));
    }

    close() { this.isClosed = true; if (this.curves) this.curves.close(); }

    draw(found, error) {
      if (this.isClosed) return;
      if (!found || !(found.runs || []).length) {
        Orch.fill(this.element, el("p.quiet.nothing", null, error ? String(error.message || error) : "There is nothing to compare."));
        return;
      }
      const { runs } = found;
      const label = (id) => { const run = runs.find((run) => run.id === id); return run ? run.name || run.id : id; };
      const isTwice = new Set(runs.map((run) => run.name)).size < runs.length;
      const name = (id) => (isTwice ? id : label(id));
      this.curves = new Orch.Curves({ tasks: () => runs.map((run, at) => ({ task: run.id, colour: at })), marks: () => [],
        nameLabel: name }, new Orch.SeriesStore(found.series, false));
      const head = (title) => [title, ...runs.map((run) => name(run.id))];
      const cells = (values) => values.map((value) => (value === null || value === undefined ? el("span.quiet", null, "–") : String(value)));
      Orch.fill(this.element,
        el("h1", null, `Comparison of ${runs.length} runs`),
        Orch.table(["Run", "State", "Took", "Command"], runs.map((run, at) => [
          el("a.number", { href: Orch.address(run.id) }, el(`span.swatch.${Orch.colourClass(at)}`), name(run.id)),
          Orch.stateMark(run.state), el("span.number", null, Orch.duration(run.took_s)), el("code", null, run.command || "")]), "Runs"),
        (found.final || []).length ? [el("h2", null, "Last values"), Orch.table(head(""), found.final.map((row) => [row.name,
          ...cells(row.values.map((value) => (value === null ? null : Orch.number(value))))]), "Last values")] : null,
        this.curves.element,
        el("h2", null, "What differs"),
        (found.differences || []).length ? Orch.table(["Kind", ...head("")], found.differences.map((row) => [row.kind, row.name, ...cells(row.values)]), "Differences")
          : el("p.quiet", null, "Options, versions and environment are the same."));
    }
  };
})((window.Orch = window.Orch || {}));
