// Dialogs: the list of keys, the confirmation of an order, and short messages.
(function (Orch) {
  "use strict";

  const { el } = Orch;
  const KEYS = [
    ["g then o", "overview"], ["g then l", "logs"], ["g then f", "failure and stacks"], ["g then p", "plan"], ["g then r", "list of runs"],
    ["/", "search in the logs"], ["n  N", "next, previous match"], ["e", "next error in the logs"],
    ["↑ ↓  PgUp PgDn  Home End", "move in the logs"], ["Enter", "unfold a line"], ["+  −  0", "zoom in, out, reset (a curve or the timeline)"],
    ["← →", "move in a curve or the timeline"], ["Esc", "leave a search, a selection, a dialog"], ["?", "this list"],
  ];

  function open(dialog) {
    document.body.appendChild(dialog);
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
    return dialog;
  }

  Orch.showKeys = function () {
    if (document.querySelector("dialog")) return;
    const dialog = el("dialog", { "aria-labelledby": "keys-title" }, el("h2", { id: "keys-title" }, "Keys"),
      el("dl.keys", null, KEYS.map(([key, does]) => [el("dt", null, el("kbd", null, key)), el("dd", null, does)])),
      el("form", { method: "dialog" }, el("button", null, "Close")));
    open(dialog);
  };

  const SIGNALS = ["SIGTERM", "SIGKILL", "SIGINT", "SIGSTOP", "SIGCONT", "SIGUSR1"];
  const ORDERS = {
    stop: { title: "Stop the run", text: "All tasks are stopped: first SIGTERM, then SIGKILL. The run ends as stopped." },
    restart: { title: "Restart all tasks", text: "All tasks are stopped and started again as the next attempt." },
    stacks: { title: "Take stacks", text: "The stacks of all tasks are written into the run's directory and shown under Failures. The tasks continue." },
    kill: { title: "Send a signal", text: "The signal is sent to the task. What follows is decided by --on-failure." },
  };

  // Asks, then sends the order. The dialog names the run and the task.
  Orch.confirmOrder = function (feed, run, verb, task) {
    if (document.querySelector("dialog")) return;
    const { title, text } = ORDERS[verb];
    const signal = el("select", { "aria-label": "Signal" }, SIGNALS.map((name) => el("option", { value: name }, name)));
    const problem = el("p.problem", { role: "alert", hidden: true });
    const go = el(`button.primary${verb === "stacks" ? "" : ".danger"}`, { type: "submit" }, title);
    const dialog = el("dialog", { "aria-labelledby": "order-title" }, el("h2", { id: "order-title" }, `${title}?`),
      el("dl.pairs", null, el("dt", null, "run"), el("dd", null, run.id), task ? [el("dt", null, "task"), el("dd", null, task), el("dt", null, "signal"), el("dd", null, signal)] : null),
      el("p", null, text), problem,
      el("form", { method: "dialog", onsubmit: (event) => {
        event.preventDefault();
        go.disabled = true;
        feed.order(run.id, verb, task ? { task, signal: signal.value } : {}).then((answer) => {
          dialog.close();
          Orch.say(answer || `${title}: sent to ${task || run.id}`);
        }, (error) => {
          go.disabled = false;
          problem.hidden = false;
          Orch.setText(problem, error.message || String(error));
        });
      } }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
    open(dialog);
  };

  let timer = null;
  Orch.say = function (text) {
    const place = document.getElementById("said");
    Orch.setText(place, text);
    place.hidden = false;
    clearTimeout(timer);
    timer = setTimeout(() => { place.hidden = true; }, 6000);
  };
})((window.Orch = window.Orch || {}));
