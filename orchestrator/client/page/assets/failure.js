// How the run ended, or how it stands: headline, cause and advice; exception, last lines and stacks.
(function (Orch) {
  "use strict";

  const { el } = Orch;
  const copyButton = (text) => el("button.quiet-button.copy", { type: "button", onclick: (event) => {
    if (!navigator.clipboard) return;
    const button = event.currentTarget;
    navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; });
  } }, "Copy");
  // A block of text that keeps its lines, with a button that copies it.
  Orch.block = (text, label) => el("div.block", null, copyButton(text), el("pre", { tabindex: "0", role: "region", "aria-label": label },
    document.createTextNode(Orch.lines(text))));

  const exitOf = (end) => (end.signal ? `signal ${end.signal}` : end.exit_code === null || end.exit_code === undefined ? "–" : `exit ${end.exit_code}`);
  Orch.table = (heads, rows, caption) => el("div.scroll", { tabindex: "0", role: "region", "aria-label": caption }, el("table", null,
    el("thead", null, el("tr", null, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((cell, at) => (at ? el("td", null, cell) : el("th", { scope: "row" }, cell))))))));

  // The first thing on the page.
  Orch.outcome = function (doc) {
    const { run, end } = doc;
    if (!end) return el("section.outcome", { hidden: !(run.remarks || []).length, "aria-label": "Remarks" }, remarks(run));
    const failure = end.first_failure;
    const advice = end.advice || (failure && failure.advice);
    const cause = end.cause && (end.cause.line || end.cause.text);
    const lines = end.outcome === "succeeded" ? [] : (failure && failure.lines) || [];
    return el(`section.outcome.${Orch.stateClass(end.outcome)}`, { "aria-label": "Outcome" },
      el("h2", null, Orch.stateMark(end.outcome), " ", el("span.headline", null, end.headline || "")),
      cause && !String(end.headline || "").includes(cause) ? el("p.cause", null, cause) : null,
      failure && failure.exception && !String(cause).includes(failure.exception) ? el("p.exception", null, failure.exception) : null,
      failure && failure.place ? el("p.quiet.place", null, failure.place) : null,
      advice ? el("p.advice", null, el("b", null, "What to do: "), advice) : null,
      lines.length ? el("details.last-lines", { open: true }, el("summary", null, `Last lines of ${failure.task}`),
        Orch.block(lines.slice(-12).join("\n"), "Last lines")) : null,
      remarks(run),
      hasFailure(doc) ? el("p.more", null, el("a", { href: Orch.address(run.id, "failure") },
        end.exception ? "Full exception and stacks" : "Failures, attempts and stacks")) : null);
  };
  const remarks = (run) => (run.remarks || []).map((remark) => el("p.remark", null, remark));
  const hasFailure = (doc) => Boolean((doc.end && (doc.end.exception || (doc.end.history || []).length || (doc.end.faults || []).length
    || (doc.end.outcome !== "succeeded" && (doc.end.lines || []).length))) || (doc.stacks || []).length);
  Orch.hasFailure = hasFailure;

  // The numbers below the outcome.
  Orch.numbers = function (doc) {
    const { run, end } = doc;
    const tasks = doc.tasks || [];
    const chief = tasks.find((task) => task.progress) || null;
    const progress = (chief && chief.progress) || (end && end.training) || null;
    const speeds = tasks.map((task) => task.progress && task.progress.steps_per_s).filter(Orch.isNumber);
    const sum = (name) => { const all = tasks.map((task) => task[name]).filter(Orch.isNumber); return all.length ? all.reduce((one, other) => one + other, 0) : null; };
    const items = [
      [run.live ? "Running for" : "Took", Orch.duration(run.live || !Orch.isNumber(run.took_s) ? run.uptime_s : run.took_s)],
      ["Started", Orch.date(run.started_at)],
      ["Tasks", Orch.count(tasks.length)],
      [run.attempts > 1 || run.most_attempts > 1 ? "Attempt" : "", `${run.attempt}${run.most_attempts ? ` of at most ${run.most_attempts}` : ""}`],
      ["Workers", ((end && end.workers) || "").replaceAll("->", "→")],
      [progress ? "Progress" : "", Orch.progressText(progress)],
      [progress ? "Loss" : "", progress && progress.bad_loss ? progress.bad_loss.value : progress ? Orch.number(progress.loss) : ""],
      ...Object.entries((progress && progress.metrics) || {}).slice(0, 4).map(([name, value]) => [name, Orch.number(value)]),
      [run.live && speeds.length ? "Steps/s" : "", Orch.number(Math.max(...speeds))],
      [run.live && sum("memory_bytes") !== null ? "Memory" : "", Orch.bytes(sum("memory_bytes"))],
      [!run.live && run.exit_code !== null && run.exit_code !== undefined ? "Exit code" : "", String(run.exit_code)],
    ];
    return items.filter(([name, value]) => name && value && value !== "–");
  };

  Orch.failureTab = function (doc) {
    const { end } = doc;
    const parts = [];
    if (end && end.exception) parts.push(el("h2", null, "Exception", end.first_failure ? el("span.quiet", null, ` of ${end.first_failure.task}`) : null), Orch.block(end.exception, "Exception"));
    if (end && (end.lines || []).length) parts.push(el("h2", null, "As the terminal showed it"), Orch.block(end.lines.join("\n"), "Final report"));
    for (const taken of doc.stacks || []) parts.push(stacks(taken));
    if (end && (end.history || []).length) parts.push(el("h2", null, "Attempts before the last one"), Orch.table(
      ["Attempt", "Cause", "Exit code", "Last step", "Resumed at", "Steps lost", "Recovery"],
      end.history.map((past) => [String(past.attempt), past.cause ? (past.cause.line || [past.cause.task, past.cause.text].filter(Boolean).join(": ")) : "–", String(past.exit_code),
        Orch.count(past.position), Orch.count(past.resumed_at), Orch.count(past.steps_lost), Orch.duration(past.recovery_s)]), "Attempts"));
    if (end && (end.faults || []).length) parts.push(el("h2", null, "Planned faults"), Orch.table(
      ["Fault", "Task", "At", "Noticed after", "All stopped after", "Recovery"],
      end.faults.map((fault) => [fault.fault, fault.task || "–", Orch.offset(fault.at_s, 1) || "not due", Orch.duration(fault.detection_s), Orch.duration(fault.teardown_s), Orch.duration(fault.recovery_s)]), "Planned faults"));
    if (end && (end.tasks || []).length && end.outcome !== "succeeded") parts.push(el("h2", null, "How each task ended"), Orch.table(
      ["Task", "State", "Exit", "How"], end.tasks.slice(0, 400).map((task) => [task.task, task.state, exitOf(task), task.end || ""]), "Ends"));
    if (!parts.length) parts.push(el("p.quiet.nothing", null, "Nothing failed, and no stacks were taken."));
    return el("div.text-page", null, parts);
  };

  const stacks = (taken) => el("section.stacks", null,
    el("h2", null, "Stacks", el("span.quiet", null, ` ${Orch.isNumber(taken.time) ? Orch.offset(taken.time, 1) : ""} ${taken.why || ""}`)),
    Object.entries(taken.tasks || {}).map(([task, stack], at) => el("details", { open: at < 4 },
      el("summary", null, el("b", null, task), el("span.quiet", null, ` ${[stack.how !== "none" && stack.how, stack.state && `state ${stack.state}`, stack.note].filter(Boolean).join(" · ")}`)),
      stack.text ? Orch.block(stack.text, `Stack of ${task}`) : null)));
})((window.Orch = window.Orch || {}));
