// The table of tasks: one row each, of which only the visible ones are in the document.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const ROW = 32, MOST_ROWS_SHOWN = 14;

  const progressText = function (progress) {
    if (!progress) return "";
    const parts = [];
    if (progress.epoch !== null && progress.epoch !== undefined) {
      parts.push(`epoch ${Orch.count(progress.epoch)}${progress.epochs ? `/${Orch.count(progress.epochs)}` : ""}`);
    }
    if (progress.step !== null && progress.step !== undefined) {
      parts.push(`step ${Orch.count(progress.step)}${progress.steps ? `/${Orch.count(progress.steps)}` : ""}`);
    }
    return parts.join(" · ");
  };
  // The part that is done, between 0 and 1, or null.
  const doneOf = function (progress) {
    if (!progress) return null;
    const steps = progress.steps ? Math.min(1, (progress.step || 0) / progress.steps) : null;
    if (progress.epochs && progress.epoch) return Math.min(1, (progress.epoch - 1 + (steps === null ? 0 : steps)) / progress.epochs);
    return steps;
  };
  const lossOf = (progress) => (progress && progress.bad_loss ? progress.bad_loss.value : progress ? Orch.number(progress.loss) : "–");
  const exitText = function (task) {
    if (task.signal) return `signal ${task.signal}`;
    return task.exit_code === null || task.exit_code === undefined ? "" : `exit ${task.exit_code}`;
  };
  const value = (task, name) => (task.progress && task.progress[name] !== undefined ? task.progress[name] : null);

  const COLUMNS = [
    { name: "task", title: "Task" },
    { name: "state", title: "State", sort: (task) => task.state },
    { name: "progress", title: "Progress", sort: (task) => value(task, "step") },
    { name: "loss", title: "Loss", right: true, sort: (task) => value(task, "loss") },
    { name: "speed", title: "Steps/s", right: true, sort: (task) => value(task, "steps_per_s") },
    { name: "cpu", title: "CPU", right: true, sort: (task) => task.cpu_percent },
    { name: "memory", title: "Memory", right: true, sort: (task) => task.memory_bytes },
    { name: "uptime", title: "Time", right: true, sort: (task) => task.uptime_s },
    { name: "restarts", title: "Restarts", right: true, sort: (task) => task.restarts },
    { name: "pid", title: "PID", right: true, sort: (task) => task.pid },
    { name: "host", title: "Host", sort: (task) => task.host },
    { name: "actions", title: "" },
  ];

  Orch.TaskTable = class {
    // run: { id, tasks(), live(), onKill(task) or null }
    constructor(run) {
      this.run = run;
      this.order = null;
      this.columns = COLUMNS.filter((column) => (column.name !== "host" || run.tasks().some((task) => task.host))
        && (column.name !== "actions" || run.onKill) && (column.name !== "restarts" || run.live() || run.tasks().some((task) => task.restarts)));
      this.head = el("div.task-head", { role: "row" }, this.columns.map((column) => {
        const cell = el(`div.cell.${column.name}${column.right ? ".right" : ""}`, { role: "columnheader" });
        if (column.sort) cell.appendChild(el("button", { type: "button", onclick: () => this.sortBy(column) }, column.title));
        else Orch.add(cell, [column.title || el("span.hidden-text", null, "Actions")]);
        column.head = cell;
        return cell;
      }));
      this.box = el("div.task-box.scroll", { tabindex: "0", role: "table", "aria-label": "Tasks" }, el("div", { role: "rowgroup" }, this.head));
      this.title = el("h2", null, "Tasks");
      this.summary = el("span.quiet");
      this.element = el("section.tasks", { "aria-label": "Tasks" }, el("div.section-head", null, this.title, this.summary), this.box);
      this.box.dataset.columns = this.columns.map((column) => column.name).join(" ");
      this.box.classList.toggle("wide", this.columns.length > 9);
      this.template = this.columns.map((column) => `var(--w-${column.name})`).join(" ");
      this.rows = new Orch.VirtualRows(this.box, { rowHeight: ROW, fixed: 30, role: "rowgroup", count: () => this.sorted.length,
        make: () => this.make(), render: (row, at) => this.render(row, at) });
      this.head.style.gridTemplateColumns = this.template;
      this.update();
    }

    close() { this.rows.close(); }

    update() {
      const tasks = this.run.tasks();
      this.sorted = tasks;
      if (this.order) {
        const { column, step } = this.order;
        const empty = (found) => found === null || found === undefined;
        this.sorted = [...tasks].sort((one, other) => {
          const first = column.sort(one), second = column.sort(other);
          if (empty(first) || empty(second)) return Number(empty(first)) - Number(empty(second));
          return (first < second ? -1 : first > second ? 1 : 0) * step;
        });
      }
      this.element.hidden = !tasks.length;
      this.box.setAttribute("aria-rowcount", String(tasks.length + 1));
      // Room for the scroll bar that a narrow window needs below.
      this.box.style.height = `${30 + Math.min(tasks.length, MOST_ROWS_SHOWN) * ROW + 2 + (this.box.offsetHeight - this.box.clientHeight || 0)}px`;
      const states = new Map();
      for (const { state } of tasks) states.set(state, (states.get(state) || 0) + 1);
      setText(this.summary, [...states].map(([state, count]) => `${Orch.count(count)} ${state}`).join(" · "));
      this.rows.changed();
    }

    sortBy(column) {
      const was = this.order;
      this.order = was && was.column === column ? (was.step === -1 ? { column, step: 1 } : null) : { column, step: -1 };
      for (const { head } of this.columns) head.removeAttribute("aria-sort");
      if (this.order) column.head.setAttribute("aria-sort", this.order.step === 1 ? "ascending" : "descending");
      this.update();
    }

    make() {
      const row = el("div.task-row", { role: "row" });
      row.style.gridTemplateColumns = this.template;
      row.cells = {};
      for (const column of this.columns) {
        const cell = el(`div.cell.${column.name}${column.right ? ".right" : ""}`, { role: "cell" });
        row.cells[column.name] = cell;
        row.appendChild(cell);
      }
      const { cells } = row;
      cells.task.appendChild(row.link = el("a.who"));
      cells.progress.append(row.bar = el("span.progress-bar", { "aria-hidden": "true" }, el("span")), row.text = el("span.progress-text"));
      if (cells.actions) {
        cells.actions.appendChild(row.kill = el("button.quiet-button", { type: "button", onclick: () => this.run.onKill(row.task) }, "Kill…"));
      }
      return row;
    }

    render(row, at) {
      const task = this.sorted[at], { cells } = row;
      row.setAttribute("aria-rowindex", String(at + 2));
      row.task = task.task;
      row.link.className = `who ${Orch.colourClass(task.colour)}`;
      row.link.setAttribute("href", Orch.address(this.run.id, "logs", { task: task.task }));
      setText(row.link, task.task);
      const label = task.paused ? `stopped (${task.stop_signal || "signal"})` : task.state;
      const exit = exitText(task);
      const key = `${task.state} ${label} ${exit}`;
      if (cells.state.key !== key) {
        cells.state.key = key;
        Orch.fill(cells.state, Orch.stateMark(task.paused ? "stopped" : task.state, label), exit && exit !== "exit 0" ? el("span.quiet", null, ` ${exit}`) : null);
      }
      const done = task.progress && task.state === "succeeded" ? 1 : doneOf(task.progress);
      row.bar.hidden = done === null;
      if (done !== null) row.bar.firstChild.style.width = `${(done * 100).toFixed(1)}%`;
      const text = progressText(task.progress);
      const doing = task.doing && task.doing !== task.state ? task.doing : "";
      setText(row.text, text && !/^(waiting|silent|importing)/.test(doing) ? text : doing || text);
      row.text.title = Orch.plain(doing);
      setText(cells.loss, lossOf(task.progress));
      cells.loss.classList.toggle("bad", Boolean(task.progress && task.progress.bad_loss));
      setText(cells.speed, Orch.number(value(task, "steps_per_s")));
      setText(cells.cpu, Orch.percent(task.cpu_percent));
      setText(cells.memory, Orch.bytes(task.memory_bytes));
      const isRunning = this.run.live() && Orch.isNumber(task.uptime_s) && ["running", "starting", "stopping"].includes(task.state);
      setText(cells.uptime, Orch.duration(isRunning ? task.uptime_s + (performance.now() - (task.seen || performance.now())) / 1000 : task.uptime_s));
      if (cells.restarts) setText(cells.restarts, task.restarts ? Orch.count(task.restarts) : "–");
      setText(cells.pid, task.pid === null || task.pid === undefined ? "–" : String(task.pid));
      if (cells.host) setText(cells.host, task.host || "–");
      if (row.kill) {
        row.kill.hidden = !this.run.live() || !task.pid || !["running", "starting", "stopping"].includes(task.state);
        row.kill.setAttribute("aria-label", Orch.plain(`Kill ${task.task}`));
      }
    }
  };
  Orch.progressText = progressText;
})((window.Orch = window.Orch || {}));
