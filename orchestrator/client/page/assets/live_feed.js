// The feed of the live page: the server of `orch ui`.
(function (Orch) {
  "use strict";

  const LIST_MS = 2000, RETRY_MS = 2000;
  // A hidden page is left alone after this time: a browser allows six connections to a server.
  const HIDDEN_MS = 10_000;
  const FIRST_LINES = 2000;
  const LOST = "The server does not answer. It may have ended: `orch ui` starts it again, at another address.";
  const REFUSED = "This page was opened for another server. Open the address that `orch ui` has printed.";

  // Paths are relative: a tunnel may lead here under another name.
  const address = (run, rest) => `api/runs/${encodeURIComponent(run)}${rest || ""}`;

  async function get(path, options) {
    let answer;
    try {
      answer = await fetch(path, { cache: "no-store", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Object.assign(new Error(LOST), { isLost: true });
    }
    if (answer.ok) return answer;
    if (answer.status === 401) throw new Error(REFUSED);
    const said = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(said.error || `The server answered ${answer.status}.`), { status: answer.status });
  }
  const getJson = async (path, options) => (await get(path, options)).json();

  const wait = (ms) => new Promise((ready) => { setTimeout(ready, ms); });
  const visible = () => (document.hidden
    ? new Promise((ready) => { document.addEventListener("visibilitychange", ready, { once: true }); }) : null);

  async function followRuns(onRuns) {
    let before = "";
    for (;;) {
      try {
        const { runs } = await getJson("api/runs");
        const key = JSON.stringify(runs);
        if (key !== before) { before = key; onRuns(runs, ""); }
      } catch (error) {
        before = "";
        onRuns(null, error.message);
      }
      await wait(LIST_MS);
      await visible();
    }
  }

  // The older lines, in batches of which the last one comes first.
  async function readBefore(run, before, view, signal) {
    const answer = await get(address(run, `/lines?before=${before}`), { signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value || "")).split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines) {
        if (!line) continue;
        view.lines(JSON.parse(line), "prepend");
        // The page is drawn between two batches.
        await wait(0);
        if (signal.aborted) return;
      }
      if (done) return;
    }
  }

  class RunFeed {
    constructor(run, view) {
      this.run = run;
      this.view = view;
      this.abort = new AbortController();
      this.onVisibility = () => this.visibilityChanged();
      document.addEventListener("visibilitychange", this.onVisibility);
      this.start();
    }

    close() {
      this.abort.abort();
      this.closeSource();
      clearTimeout(this.hiding);
      document.removeEventListener("visibilitychange", this.onVisibility);
    }
    closeSource() { if (this.source) this.source.close(); this.source = null; }

    // Reads the whole run, then what is new. Repeated if the server cannot continue from what the page has.
    async start() {
      const { signal } = this.abort;
      this.isPartial = this.isCut = false;
      this.closeSource();
      if (this.older) this.older.abort();
      try {
        const doc = await getJson(address(this.run), { signal });
        const last = await getJson(address(this.run, `/lines?tail=${FIRST_LINES}`), { signal });
        this.view.document(doc);
        this.view.lines(last.rows, "append");
        this.view.problem("");
        this.state = `${doc.feed}.${last.cursor}`;
        this.listen();
        this.older = new AbortController();
        signal.addEventListener("abort", () => this.older.abort());
        this.isPartial = last.before > 0;
        if (this.isPartial) await readBefore(this.run, last.before, this.view, this.older.signal);
        this.isPartial = false;
      } catch (error) {
        if (signal.aborted || error.name === "AbortError") return;
        // From here on the connection of new lines tells what is wrong.
        if (this.isPartial && this.source) { this.isCut = true; return; }
        this.view.problem(error.message);
        if (!error.isLost) return;
        await wait(RETRY_MS);
        if (!signal.aborted) this.start();
      }
    }

    listen() {
      const source = new EventSource(address(this.run, `/feed?state=${encodeURIComponent(this.state)}`));
      this.source = source;
      const take = (kind, act) => source.addEventListener(kind, (event) => {
        if (event.lastEventId) this.state = event.lastEventId;
        act(JSON.parse(event.data));
      });
      // The new points of the curves come as several series, one after the other.
      take("change", ({ series, ...delta }) => {
        this.view.change(delta);
        for (const points of series || []) this.view.change({ series: points });
      });
      take("lines", (rows) => this.view.lines(rows, "append"));
      take("problem", ({ problem }) => { this.closeSource(); this.view.problem(problem); });
      take("reload", () => this.start());
      source.onopen = () => {
        this.view.problem("");
        // The connection was interrupted while older lines were read.
        if (this.isCut) this.start();
      };
      source.onerror = () => {
        this.view.problem(LOST);
        // The browser tries again by itself, unless the server has refused it.
        if (source.readyState === EventSource.CLOSED && this.source === source) {
          this.source = null;
          setTimeout(() => { if (!this.abort.signal.aborted && !this.source) this.start(); }, RETRY_MS);
        }
      };
    }

    visibilityChanged() {
      clearTimeout(this.hiding);
      if (document.hidden) this.hiding = setTimeout(() => { this.isLeft = Boolean(this.source); this.closeSource(); }, HIDDEN_MS);
      else if (this.isLeft) { this.isLeft = false; this.listen(); }
    }
  }

  Orch.liveFeed = () => ({
    live: true,
    runs(onRuns) { followRuns(onRuns); },
    open(run, view) {
      const feed = new RunFeed(run, view);
      return () => feed.close();
    },
    comparison: (runs) => getJson(`api/compare?${new URLSearchParams(runs.map((id) => ["run", id]))}`),
    async order(run, verb, given) {
      const answer = await getJson(address(run, `/orders/${verb}`), {
        method: "POST", headers: { "Content-Type": "application/json", "X-Orch": "1" }, body: JSON.stringify(given || {}),
      });
      return answer.said;
    },
  });
})((window.Orch = window.Orch || {}));
