// The logs of a run: a list of a million lines, filters, search, and the selected line in full.
(function (Orch) {
  "use strict";

  const { el, setText } = Orch;
  const MOST_CHECKBOXES = 100;
  // A jump waits so long for its lines.
  const MOST_LOADING_MS = 5000;
  const LEVEL_NAMES = ["", "warning", "error"];

  Orch.LogView = class {
    // run: { id, tasks: () -> task rows, startedAt: () -> Unix seconds, live }
    constructor(run) {
      this.run = run;
      this.store = new Orch.LogStore((before) => this.changed(before));
      this.selected = null;
      this.newLines = 0;
      this.isClock = false;
      this.colours = new Map();
      this.drawCounts = Orch.onceAFrame(() => this.renderCounts());
      this.build();
    }

    close() { this.rows.close(); this.store.close(); }

    build() {
      this.search = el("input.search", {
        type: "search", placeholder: "Search", "aria-label": "Search in the logs", spellcheck: "false", autocomplete: "off",
        oninput: Orch.atMostEvery(120, () => this.onSearch()),
        onkeydown: (event) => {
          if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
          if (event.key === "Escape") { this.search.value = ""; this.onSearch(); this.list.focus(); }
        },
      });
      this.found = el("span.found", { role: "status" });
      const toggle = (text, label, act) => el("button.toggle", { type: "button", "aria-pressed": "false", title: label,
        "aria-label": label, onclick: (event) => {
          const isOn = event.currentTarget.getAttribute("aria-pressed") !== "true";
          event.currentTarget.setAttribute("aria-pressed", String(isOn));
          act(isOn);
        } }, text);
      this.regex = toggle(".*", "Regular expression", () => this.onSearch());
      this.matchCase = toggle("Aa", "Match case", () => this.onSearch());
      this.only = toggle("Only matches", "Show only lines that match", () => this.onSearch());
      this.fold = toggle("Fold", "Fold start-up and repeated lines", (isOn) => this.keepingPlace({ fold: isOn }));
      this.fold.setAttribute("aria-pressed", "true");
      this.clock = toggle("Clock", "Show the time of day", (isOn) => { this.isClock = isOn; this.rows.draw(); this.detail(); });
      this.clock.classList.add("clock");
      this.levels = el("div.segments", { role: "group", "aria-label": "Level" });
      this.levelButtons = ["All", "Warnings", "Errors"].map((text, level) => {
        const button = el("button", { type: "button", "aria-pressed": String(level === 0),
          onclick: () => this.setLevel(level) }, text, el("span.n"));
        this.levels.appendChild(button);
        return button;
      });
      this.buildTasks();
      this.list = el("div.log-list", { tabindex: "0", role: "listbox", "aria-label": "Log lines",
        onkeydown: (event) => this.onKey(event), onclick: (event) => this.onClick(event) });
      this.more = el("button.more-lines", { type: "button", hidden: true, onclick: () => this.toEnd() });
      this.text = el("div.log-detail", { hidden: true, "aria-label": "Selected line", role: "region", tabindex: "0" });
      this.size = el("span.size.quiet");
      this.empty = el("p.log-empty.quiet");
      this.element = el("section.logs", { "aria-label": "Logs" },
        el("div.bar", null,
          el("div.searching", null, this.search, this.found, el("button.icon", { type: "button", "aria-label": "Previous match",
            title: "Previous match (N)", onclick: () => this.step(-1) }, "↑"), el("button.icon", { type: "button",
            "aria-label": "Next match", title: "Next match (n)", onclick: () => this.step(1) }, "↓"),
            this.matchCase, this.regex, this.only),
          this.levels, this.tasks, this.fold, this.clock,
          el("span.grow"), this.size,
          el("button", { type: "button", onclick: () => this.rows.moveTo(0) }, "Start"),
          el("button", { type: "button", onclick: () => this.toEnd() }, "End")),
        el("div.log-frame", null, this.list, this.empty, this.more), this.text);
      this.rows = new Orch.VirtualRows(this.list, {
        rowHeight: 20, role: "presentation", follows: true,
        count: () => this.store.shownSize,
        make: () => this.makeRow(),
        render: (row, at) => this.renderRow(row, at),
        onEnd: () => this.onEnd(),
      });
      this.rows.isAtEnd = true;
    }

    buildTasks() {
      this.taskList = el("div.checks");
      this.taskSearch = el("input", { type: "search", placeholder: "Find a task", "aria-label": "Find a task",
        oninput: () => this.renderTasks() });
      this.taskLabel = el("span", null, "All tasks");
      this.tasks = el("details.menu", { ontoggle: () => { if (this.tasks.open) { this.renderTasks(); this.taskSearch.focus(); } },
        onkeydown: (event) => {
          if (event.key !== "Escape") return;
          this.tasks.open = false;
          this.tasks.querySelector("summary").focus();
        } },
        el("summary", null, this.taskLabel),
        el("div.menu-box", null, this.taskSearch, this.taskList,
          el("button", { type: "button", onclick: () => { this.setTasks(null); this.renderTasks(); } }, "All tasks")));
      this.closeMenu = (event) => { if (this.tasks.open && !this.tasks.contains(event.target)) this.tasks.open = false; };
      document.addEventListener("click", this.closeMenu);
    }

    renderTasks() {
      const wanted = this.taskSearch.value.trim();
      const chosen = this.chosen;
      const names = this.run.tasks().map((task) => task.task).filter((name) => name.includes(wanted));
      Orch.fill(this.taskList, names.slice(0, MOST_CHECKBOXES).map((name) => el("label", null,
        el("input", { type: "checkbox", checked: chosen && chosen.has(name), onchange: (event) => {
          const next = new Set(this.chosen || []);
          if (event.target.checked) next.add(name); else next.delete(name);
          this.setTasks(next.size ? next : null);
        } }), el(`span.who.${this.colourOf(name)}`, null, name))),
        names.length > MOST_CHECKBOXES ? el("p.quiet", null, `${Orch.count(names.length - MOST_CHECKBOXES)} more`) : null);
    }

    setTasks(names) {
      this.chosen = names;
      setText(this.taskLabel, names ? Orch.taskNames([...names]) : "All tasks");
      const numbers = names && new Set([...names].map((name) => this.store.numberOf(name)));
      this.keepingPlace({ tasks: numbers });
    }

    setLevel(level) {
      this.levelButtons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === level)));
      this.keepingPlace({ level });
    }

    // Filters, then shows the line that was at the top, or the next one that is left.
    keepingPlace(changes, done) {
      const top = this.selected || this.store.line(Math.ceil(this.rows.first));
      const wasAtEnd = this.rows.isAtEnd;
      this.store.setFilter(changes, () => {
        if (wasAtEnd && !this.selected) this.toEnd();
        else if (top) this.rows.moveTo(this.store.position(top.chunk, top.row) - (this.selected ? this.rows.visible / 3 : 0));
        if (this.store.filter.pattern || this.hadPattern) {
          this.hadPattern = Boolean(this.store.filter.pattern);
          this.store.searchAll(() => { this.showFound(); if (done) done(); });
        } else {
          this.showFound();
          if (done) done();
        }
      });
    }

    onSearch() {
      const isOn = (button) => button.getAttribute("aria-pressed") === "true";
      const wanted = this.search.value;
      let pattern = null;
      this.search.removeAttribute("aria-invalid");
      if (wanted) {
        const source = isOn(this.regex) ? wanted : wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
        try {
          pattern = new RegExp(source, isOn(this.matchCase) ? "" : "i");
        } catch {
          this.search.setAttribute("aria-invalid", "true");
          setText(this.found, "not a regular expression");
          return;
        }
      }
      this.match = null;
      const search = (this.latestSearch = {});
      this.keepingPlace({ pattern, onlyMatches: isOn(this.only) }, () => {
        // While lines were searched, another word may have been typed.
        if (pattern && this.latestSearch === search && this.store.matchSize) this.step(1);
      });
    }

    // Other filters and new lines change the number of a match, or end it.
    countMatch() {
      const { match, store } = this;
      if (!match) return;
      const again = store.matchFrom({ chunk: match.chunk, row: match.row - 1 }, 1);
      this.match = again && again.chunk === match.chunk && again.row === match.row ? again : null;
    }

    showFound() {
      this.countMatch();
      const { pattern } = this.store.filter;
      const size = this.store.matchSize;
      setText(this.found, !pattern ? "" : !size ? "no match"
        : this.match ? `${Orch.count(this.match.number + 1)} of ${Orch.count(size)}` : Orch.count(size));
    }

    step(direction) {
      const start = this.match || (this.selected ? this.selected : null) || this.store.line(Math.ceil(this.rows.first));
      const before = start && !this.match ? { chunk: start.chunk, row: start.row - (direction > 0 ? 1 : 0) } : start;
      this.match = this.store.matchFrom(before, direction);
      if (this.match) this.select(this.store.reveal(this.match.chunk, this.match.row));
      this.showFound();
    }

    // Selects the next line of level error below, from the start again after the last one.
    nextError() {
      const place = this.store.errorAfter(this.selected);
      if (place) this.select(this.store.reveal(place.chunk, place.row));
      else Orch.say("No line looks like an error.");
    }

    select(position) {
      this.selected = this.store.line(position);
      this.rows.show(position);
      this.detail();
    }

    // Shows the lines of a moment, in seconds since the run's start.
    jumpTo(seconds, task) {
      this.rows.isAtEnd = false;
      this.wanted = { ms: Math.floor(seconds * 1000), task, until: performance.now() + MOST_LOADING_MS };
      this.jump();
    }

    // The lines of that moment may still be on their way.
    jump() {
      const { ms, task, until } = this.wanted;
      const position = this.store.positionAt(ms, task);
      const line = this.store.line(position);
      if (line) this.select(position);
      if ((line && line.time >= ms) || performance.now() > until) this.wanted = null;
    }

    toEnd() {
      this.selected = null;
      this.detail();
      this.rows.isAtEnd = true;
      this.rows.moveTo(Infinity);
      this.onEnd();
    }

    onEnd() {
      if (!this.rows.isAtEnd) return;
      this.newLines = 0;
      this.more.hidden = true;
    }

    add(rows, where) {
      if (where === "append" && !this.rows.isAtEnd && this.run.live && this.hasShown) {
        this.newLines += rows.text.length;
        setText(this.more, `${Orch.counted(this.newLines, "new line")} ↓`);
        this.more.hidden = false;
      }
      this.hasShown = true;
      this.store.add(rows, where);
    }

    changed(before) {
      this.rows.changed(before);
      if (this.wanted) this.jump();
      this.drawCounts();
    }

    renderCounts() {
      const { store } = this;
      if (store.filter.pattern && !store.stopSearch) this.showFound();
      const width = String(Math.min(store.longest, 4200) + 26);
      if (width !== this.width) {
        this.width = width;
        this.rows.space.style.setProperty("--columns", width);
      }
      setText(this.size, store.shownSize === store.size ? Orch.counted(store.size, "line")
        : `${Orch.count(store.shownSize)} of ${Orch.counted(store.size, "line")}`);
      [null, store.counts[1], store.counts[2]].forEach((count, level) => {
        if (count !== null) setText(this.levelButtons[level].lastChild, count ? ` ${Orch.count(count)}` : "");
      });
      setText(this.empty, store.shownSize ? "" : store.size ? "No line passes the filters." : "No lines yet.");
      this.list.toggleAttribute("data-empty", !store.shownSize);
    }

    colourOf(task) {
      if (!this.colours.has(task)) {
        const row = this.run.tasks().find((row) => row.task === task);
        if (!row) return "c-none";
        this.colours.set(task, Orch.colourClass(row.colour));
      }
      return this.colours.get(task);
    }

    makeRow() {
      const row = el("div.log-row", { role: "option" }, el("span.when"), el("span.who"), el("span.what"));
      [row.when, row.who, row.what] = row.children;
      return row;
    }

    renderRow(row, at) {
      const line = this.store.line(at);
      if (!line) { row.hidden = true; return; }
      const { selected } = this;
      const isSelected = Boolean(selected && selected.chunk === line.chunk && selected.row === line.row);
      const { pattern } = this.store.filter;
      const key = [line.row, line.members ? line.members.length : 0, line.isExpanded, isSelected, this.isClock, pattern].join();
      if (row.chunk === line.chunk && row.key === key && row.at === at) return;
      row.chunk = line.chunk; row.key = key; row.at = at;
      row.id = `line-${at}`;
      row.setAttribute("aria-selected", String(isSelected));
      row.setAttribute("aria-posinset", String(at + 1));
      row.setAttribute("aria-setsize", String(this.store.shownSize));
      setText(row.when, this.time(line));
      const isFolded = line.members && !line.isExpanded;
      const who = isFolded ? Orch.taskNames(this.store.tasksOf(line)) : line.task || "";
      setText(row.who, who);
      row.who.className = `who ${line.task ? this.colourOf(line.task) : ""}`;
      row.className = `log-row ${LEVEL_NAMES[line.level]}${line.isStartup ? " startup" : ""}${line.task ? "" : " orch"}`;
      row.what.replaceChildren();
      if (line.members) {
        row.what.appendChild(el("span.fold-sign", { title: line.isExpanded ? "Fold" : "Unfold" },
          line.isExpanded ? "▾" : line.isStartup ? "▸" : `×${Orch.count(line.members.length)}`));
      }
      if (isFolded && line.isStartup) {
        row.what.appendChild(document.createTextNode(`${Orch.counted(line.members.length, "line")} of TensorFlow's start`));
      } else {
        this.appendMarked(row.what, Orch.plain(line.text), pattern);
      }
      if (isSelected) this.list.setAttribute("aria-activedescendant", row.id);
    }

    appendMarked(parent, text, pattern) {
      const match = pattern && pattern.exec(text);
      if (!match || !match[0]) { parent.appendChild(document.createTextNode(text)); return; }
      const all = new RegExp(pattern.source, `${pattern.flags}g`);
      let at = 0, marks = 0;
      for (const found of text.matchAll(all)) {
        if (!found[0] || marks++ > 50) break;
        parent.append(text.slice(at, found.index), el("mark", null, found[0]));
        at = found.index + found[0].length;
      }
      parent.append(text.slice(at));
    }

    time(line) {
      if (line.time < 0) return "";
      return this.isClock ? Orch.clock(this.run.startedAt() + line.time / 1000, 3) : Orch.offset(line.time / 1000);
    }

    detail() {
      const line = this.selected;
      this.text.hidden = !line;
      if (line) {
        const copy = el("button", { type: "button", onclick: () => navigator.clipboard && navigator.clipboard.writeText(line.text) }, "Copy");
        const shut = el("button.icon", { type: "button", "aria-label": "Close", onclick: () => { this.selected = null; this.detail(); } }, "✕");
        Orch.fill(this.text, el("div.detail-head", null,
          line.task ? el(`span.who.${this.colourOf(line.task)}`, null, line.task) : null,
          el("span.quiet", null, line.time < 0 ? "" : `${Orch.offset(line.time / 1000)} · ${Orch.clock(this.run.startedAt() + line.time / 1000, 3)}`),
          line.attempt > 1 ? el("span.quiet", null, `attempt ${line.attempt}`) : null,
          line.members ? el("span.quiet", null, `${Orch.counted(line.members.length, "line")} of ${Orch.taskNames(this.store.tasksOf(line))}`) : null,
          el("span.grow"), copy, shut), el("pre", null, line.text));
      } else {
        this.list.removeAttribute("aria-activedescendant");
      }
      this.rows.draw();
    }

    onClick(event) {
      this.wanted = null;
      const row = event.target.closest(".log-row");
      if (!row || (getSelection() && !getSelection().isCollapsed)) return;
      const line = this.store.line(row.at);
      if (!line) return;
      if (line.members && (event.target.classList.contains("fold-sign") || line.isStartup)) this.store.toggle(line);
      else this.select(row.at);
    }

    onKey(event) {
      this.wanted = null;
      if (event.target !== this.list || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, Math.floor(this.rows.visible) - 2);
      const here = this.selected ? this.store.position(this.selected.chunk, this.selected.row) : Math.ceil(this.rows.first);
      const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
      if (event.key in steps) {
        const start = this.selected || Math.abs(steps[event.key]) !== 1 ? here : here - steps[event.key];
        const target = Math.max(0, Math.min(this.store.shownSize - 1, start + steps[event.key]));
        if (event.key === "End") this.toEnd(); else if (this.store.shownSize) this.select(target);
      } else if (event.key === "Enter" && this.selected) {
        const line = this.store.line(here);
        if (line && line.members) this.store.toggle(line);
      } else if (event.key === "Escape") {
        this.selected = null;
        this.detail();
      } else {
        return;
      }
      event.preventDefault();
    }
  };
})((window.Orch = window.Orch || {}));
