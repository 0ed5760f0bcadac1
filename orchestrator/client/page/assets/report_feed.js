// The feed of a report: the runs and their logs are in the file itself.
(function (Orch) {
  "use strict";

  // base64(gzip(JSON)) in <script type="text/plain" id=...>: nothing in it can be markup.
  async function embedded(id) {
    const holder = document.getElementById(id);
    if (!holder) return null;
    const text = atob(holder.textContent.trim());
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  const part = (column, from, until) => (Array.isArray(column) ? column.slice(from, until) : column);
  const PART = 20_000;

  Orch.reportFeed = function () {
    const documents = embedded("runs").then((found) => found || []);
    const lastLoss = (doc) => {
      for (const task of doc.tasks || []) if (task.progress && Orch.isNumber(task.progress.loss)) return task.progress.loss;
      return doc.end && doc.end.training ? doc.end.training.loss : null;
    };
    return {
      live: false,
      runs(onRuns) {
        documents.then((all) => onRuns(all.map((doc) => ({ ...doc.run, tasks: (doc.tasks || []).length, loss: lastLoss(doc) }))));
      },
      open(id, view) {
        let isOpen = true;
        (async () => {
          const all = await documents;
          const number = all.findIndex((doc) => doc.run.id === id);
          if (!isOpen) return;
          if (number < 0) { view.problem(`This report does not contain the run ${id}.`); return; }
          view.document(all[number]);
          // The page is drawn before its lines are read.
          await new Promise((ready) => { setTimeout(ready, 0); });
          const rows = await embedded(`log-${number}`);
          if (!rows || !isOpen) return;
          for (let from = 0; from < rows.text.length; from += PART) {
            const until = from + PART;
            view.lines({ names: rows.names, time: part(rows.time, from, until), task: part(rows.task, from, until),
              attempt: part(rows.attempt, from, until), text: part(rows.text, from, until) }, "append");
          }
        })().catch((error) => { if (isOpen) view.problem(`The report cannot be read: ${error.message}`); });
        return () => { isOpen = false; };
      },
      comparison: () => embedded("comparison"),
    };
  };
})((window.Orch = window.Orch || {}));
