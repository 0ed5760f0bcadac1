// Text, numbers, elements and slices of work: what every part of the page uses.
(function (Orch) {
  "use strict";

  // Control characters, and characters that reverse the reading order or end a line: with them a text can look like
  // another one. Each is shown as one visible character, so that columns still count.
  const UNSAFE = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]/g;
  const pictured = (character) =>
    character < " " ? String.fromCharCode(0x2400 + character.charCodeAt(0)) : character === "\x7f" ? "\u2421" : "\ufffd";

  // Text of tasks, files and names, safe to show in one line.
  Orch.plain = (text) => String(text).replace(UNSAFE, pictured);
  // The same for text of several lines.
  Orch.lines = (text) => String(text).split("\n").map(Orch.plain).join("\n");

  // el("div.name.other", {id: "x", onclick: f}, child, "text", ...): text and attributes are data, never markup.
  Orch.el = function (what, properties, ...children) {
    const [tag, ...classes] = what.split(".");
    const made = document.createElement(tag || "div");
    if (classes.length) made.className = classes.join(" ");
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "href") made.setAttribute("href", Orch.safeAddress(value));
      else made.setAttribute(name, value === true ? "" : Orch.plain(value));
    }
    Orch.add(made, children);
    return made;
  };
  Orch.add = function (parent, children) {
    for (const child of children) {
      if (child === null || child === undefined || child === false) continue;
      if (Array.isArray(child)) Orch.add(parent, child);
      else if (child instanceof Node) parent.appendChild(child);
      else parent.appendChild(document.createTextNode(Orch.plain(child)));
    }
  };
  Orch.fill = function (parent, ...children) {
    parent.replaceChildren();
    Orch.add(parent, children);
    return parent;
  };
  // Sets the text only if it differs: a changed text node costs a layout.
  Orch.setText = function (element, text) {
    const shown = Orch.plain(text);
    if (element.textContent !== shown) element.textContent = shown;
  };
  // Only web addresses and places on this page are followed: "javascript:" never is.
  Orch.safeAddress = (address) => (/^(https?:\/\/|#)/i.test(address) ? address : "#");
  Orch.link = (address, text) =>
    /^https?:\/\//i.test(address)
      ? Orch.el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text)
      : Orch.el("span", null, text);

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  Orch.isNumber = isNumber;

  // A value of a curve or a table: about four digits, never longer than 9 characters.
  Orch.number = function (value) {
    if (!isNumber(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e7 || size < 1e-4) return value.toExponential(2);
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 5);
  };
  Orch.count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en-US") : "–");
  Orch.counted = (value, noun) => `${Orch.count(value)} ${noun}${value === 1 ? "" : "s"}`;
  Orch.bytes = function (value) {
    if (!isNumber(value)) return "–";
    const units = ["B", "KB", "MB", "GB", "TB"];
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
  };
  // Distances of the lines of a time axis, in seconds.
  Orch.TIME_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  Orch.percent = (value) => (isNumber(value) ? `${value.toFixed(0)} %` : "–");
  const two = (value) => String(value).padStart(2, "0");
  // 4.2 s, 1 min 05 s, 2 h 03 min
  Orch.duration = function (seconds) {
    if (!isNumber(seconds)) return "–";
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    const whole = Math.round(seconds);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  };
  // Seconds since the run's start as 3:07.123, in a width that does not change within an hour.
  Orch.offset = function (seconds, digits = 3) {
    if (!isNumber(seconds)) return "";
    const sign = seconds < 0 ? "-" : "";
    // Rounded first: 59.9996 is 1:00.000.
    const rounded = Number(Math.abs(seconds).toFixed(digits));
    const hours = Math.floor(rounded / 3600), minutes = Math.floor((rounded % 3600) / 60);
    const rest = (rounded % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
    return `${sign}${hours ? `${hours}:${two(minutes)}` : minutes}:${rest}`;
  };
  Orch.clock = function (unixSeconds, digits = 0) {
    const date = new Date(unixSeconds * 1000);
    if (Number.isNaN(date.getTime())) return "";
    const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
    return digits ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
  };
  Orch.date = function (unixSeconds) {
    const date = new Date((unixSeconds || 0) * 1000);
    if (!unixSeconds || Number.isNaN(date.getTime())) return "–";
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${Orch.clock(unixSeconds)}`;
  };

  // worker:0, worker:1, worker:3 -> worker:0-1,3 in the given order of roles.
  Orch.taskNames = function (names) {
    const roles = new Map();
    for (const name of names) {
      const match = /^(.*):(\d+)$/.exec(name);
      const role = match ? match[1] : name;
      if (!roles.has(role)) roles.set(role, []);
      if (match) roles.get(role).push(Number(match[2]));
    }
    return [...roles].map(([role, numbers]) => {
      if (!numbers.length) return role;
      numbers.sort((one, other) => one - other);
      const parts = [];
      for (let at = 0; at < numbers.length; ) {
        let end = at;
        while (end + 1 < numbers.length && numbers[end + 1] <= numbers[end] + 1) end += 1;
        parts.push(numbers[end] > numbers[at] ? `${numbers[at]}-${numbers[end]}` : `${numbers[at]}`);
        at = end + 1;
      }
      return `${role}:${parts.join(",")}`;
    }).join(" ");
  };
  Orch.colourClass = (number) => `c${((number || 0) % 10 + 10) % 10}`;

  // A state's class, which gives its colour, and the sign that says the same without colour.
  const STATES = {
    succeeded: ["good", "✓"], failed: ["bad", "✕"], lost: ["bad", "✕"], timed_out: ["bad", "✕"],
    stopped: ["still", "■"], running: ["live", "●"], starting: ["wait", "◌"], pending: ["wait", "◌"], queued: ["wait", "◌"],
    stopping: ["wait", "◍"], damaged: ["bad", "!"],
  };
  Orch.stateClass = (state) => (STATES[state] || ["still", "·"])[0];
  Orch.stateMark = function (state, label) {
    const [kind, sign] = STATES[state] || ["still", "·"];
    return Orch.el(`span.state.${kind}`, null, Orch.el("span.sign", { "aria-hidden": "true" }, sign),
      Orch.el("span", null, label || String(state).replaceAll("_", " ")));
  };

  // The value of a style variable now, for canvases.
  Orch.cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Runs `step` until it returns true ("done"), for at most 8 ms at a time, so that the page answers in between.
  // Returns a function that ends it.
  const SLICE_MS = 8;
  Orch.inSlices = function (step, done) {
    let stopped = false;
    const channel = new MessageChannel();
    const work = () => {
      if (stopped) return;
      const until = performance.now() + SLICE_MS;
      while (performance.now() < until) {
        if (step()) { stopped = true; channel.port1.close(); if (done) done(); return; }
      }
      channel.port2.postMessage(0);
    };
    channel.port1.onmessage = work;
    channel.port2.postMessage(0);
    return () => { stopped = true; channel.port1.close(); };
  };
  // Calls `draw` once in the next frame, however often it is asked to.
  Orch.onceAFrame = function (draw) {
    let isDue = false;
    return () => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => { isDue = false; draw(); });
    };
  };
  // Calls `act` at most every `ms`, and always after the last call.
  Orch.atMostEvery = function (ms, act) {
    let timer = null, last = -Infinity;
    const run = () => { timer = null; last = performance.now(); act(); };
    return () => {
      if (timer !== null) return;
      timer = setTimeout(run, Math.max(0, last + ms - performance.now()));
    };
  };

  // The address of a view: #/run/ID/logs?task=worker:0&at=12.5
  Orch.route = function () {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
    return { view: parts[0] || "", run: parts[1] || "", tab: parts[2] || "", query: new URLSearchParams(query || "") };
  };
  Orch.address = function (run, tab, query) {
    const given = Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    return `#/run/${encodeURIComponent(run)}${tab ? `/${tab}` : ""}${text ? `?${text}` : ""}`;
  };
  Orch.go = (address) => { location.hash = address; };
})((window.Orch = window.Orch || {}));
