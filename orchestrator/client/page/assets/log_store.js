// The log lines of a run in chunks, with a filter, folding and search that work in slices.
(function (Orch) {
  "use strict";

  const CHUNK = 2048;
  const APPENDED_AT_ONCE = 400;
  // Equal lines are folded if they are so near in the list, and arrived within so many milliseconds.
  const NEAR_ROWS = 8, NEAR_MS = 1000;
  const STARTUP = 4, LEVEL = 3;

  class Chunk {
    constructor() {
      this.size = 0;
      this.time = new Float64Array(CHUNK);
      this.task = new Uint16Array(CHUNK);
      this.attempt = new Uint16Array(CHUNK);
      this.kind = new Uint8Array(CHUNK);
      this.text = [];
      this.expanded = null; // Heads of folded lines that are shown.
      this.view = null;
      this.next = null;
      this.matches = [];
      this.searched = 0;
    }
  }

  // The rows of a chunk that a filter shows. `members`: the rows folded into a shown one, itself included.
  const newView = () => ({ done: 0, shown: [], members: new Map() });

  Orch.LogStore = class {
    // onChange(rows added before the first one, whether the order is a new one)
    constructor(onChange) {
      this.onChange = onChange;
      this.chunks = [];
      this.names = [];
      this.numbers = new Map();
      this.filter = { tasks: null, level: 0, fold: true, pattern: null, onlyMatches: false };
      this.size = 0;
      this.shownSize = 0;
      this.matchSize = 0;
      this.counts = [0, 0, 0];
      this.longest = 0;
      this.queue = [];
      this.tracebacks = new Set();
    }

    close() {
      for (const stop of [this.stopFilling, this.stopFilter, this.stopSearch]) if (stop) stop();
    }

    numberOf(name) {
      let number = this.numbers.get(name);
      if (number === undefined) {
        number = this.names.length;
        this.names.push(name);
        this.numbers.set(name, number);
      }
      return number;
    }

    // Adds rows as the feed gives them. Many are added in slices.
    add(rows, where) {
      const size = rows.text.length;
      if (!size) return;
      const numbers = rows.names.map((name) => this.numberOf(name));
      const job = { rows, where, numbers, size, done: 0 };
      if (where === "append" && size <= APPENDED_AT_ONCE && !this.queue.length) {
        this.work(job);
        this.changed(0);
        return;
      }
      this.queue.push(job);
      if (this.queue.length === 1) {
        this.stopFilling = Orch.inSlices(() => {
          const job = this.queue[0];
          const before = job.where === "prepend" ? this.prependChunk(job) : 0;
          if (job.where !== "prepend") this.work(job);
          if (job.done >= job.size) this.queue.shift();
          this.changed(before);
          return !this.queue.length;
        });
      }
    }

    put(chunk, job, row, tracebacks) {
      const { rows, numbers } = job, at = chunk.size, text = rows.text[row];
      const task = rows.task[row] < 0 ? 65535 : numbers[rows.task[row]];
      chunk.time[at] = rows.time[row];
      chunk.task[at] = task;
      chunk.attempt[at] = typeof rows.attempt === "number" ? rows.attempt : (rows.attempt && rows.attempt[row]) || 0;
      const level = Orch.levelOf(text, task, tracebacks);
      chunk.kind[at] = level | (Orch.isStartupLine(text) ? STARTUP : 0);
      chunk.text.push(text);
      if (text.length > this.longest) this.longest = text.length;
      this.counts[level] += 1;
      chunk.size += 1;
      this.size += 1;
    }

    // Appends up to 512 rows of the job.
    work(job) {
      let chunk = this.chunks[this.chunks.length - 1];
      if (!chunk || chunk.size === CHUNK) { chunk = new Chunk(); this.chunks.push(chunk); }
      const until = Math.min(job.size, job.done + Math.min(512, CHUNK - chunk.size));
      while (job.done < until) { this.put(chunk, job, job.done, this.tracebacks); job.done += 1; }
      this.extend(chunk);
      if (job.size <= APPENDED_AT_ONCE && job.done < job.size) this.work(job);
    }

    // Puts the last rows of the job that are not done before all chunks. Returns the number of rows shown of them.
    prependChunk(job) {
      const chunk = new Chunk();
      const until = job.size - job.done, from = Math.max(0, until - CHUNK);
      const tracebacks = new Set();
      for (let row = from; row < until; row += 1) this.put(chunk, job, row, tracebacks);
      job.done += until - from;
      this.chunks.unshift(chunk);
      this.extend(chunk);
      return chunk.view.shown.length;
    }

    extend(chunk) {
      if (!chunk.view) chunk.view = newView();
      this.select(chunk, chunk.view, this.filter);
      if (chunk.next) this.select(chunk, chunk.next, this.nextFilter);
      if (this.filter.pattern && !this.stopSearch) this.search(chunk);
    }

    // Shows the rows of the chunk that the filter lets through and that are not in the view yet.
    select(chunk, view, filter) {
      const { tasks, level, fold, pattern, onlyMatches } = filter;
      for (let row = view.done; row < chunk.size; row += 1) {
        if (tasks && !tasks.has(chunk.task[row])) continue;
        if (level && (chunk.kind[row] & LEVEL) < level) continue;
        if (onlyMatches && pattern && !pattern.test(chunk.text[row])) continue;
        const head = fold ? this.headFor(chunk, view, row) : -1;
        if (head < 0) { view.shown.push(row); continue; }
        let members = view.members.get(head);
        if (!members) { members = [head]; view.members.set(head, members); }
        members.push(row);
        if (chunk.expanded && chunk.expanded.has(head)) view.shown.push(row);
      }
      view.done = chunk.size;
    }

    // The shown row that `row` is folded into, or -1.
    headFor(chunk, view, row) {
      const { shown } = view;
      const last = shown.length - 1;
      if (last < 0 || chunk.task[row] === 65535) return -1;
      if (chunk.kind[row] & STARTUP) {
        const before = shown[last];
        if (!(chunk.kind[before] & STARTUP)) return -1;
        return view.startHead !== undefined && view.startLast === before ? this.grow(view, row, chunk)
          : this.grow(Object.assign(view, { startHead: before }), row, chunk);
      }
      const text = chunk.text[row];
      for (let at = last; at >= 0 && at > last - NEAR_ROWS; at -= 1) {
        const other = shown[at];
        if (chunk.text[other] === text && Math.abs(chunk.time[row] - chunk.time[other]) <= NEAR_MS) {
          return this.memberHead(chunk, view, other);
        }
      }
      return -1;
    }

    // The head of the current block of start-up lines; the last shown row of the block is remembered.
    grow(view, row, chunk) {
      view.startLast = chunk.expanded && chunk.expanded.has(view.startHead) ? row : view.startHead;
      return view.startHead;
    }

    memberHead(chunk, view, row) {
      if (!chunk.expanded) return row;
      for (const head of chunk.expanded) {
        const members = view.members.get(head);
        if (members && members.includes(row)) return head;
      }
      return row;
    }

    changed(before) {
      let total = 0, matches = 0;
      const starts = new Array(this.chunks.length);
      for (let at = 0; at < this.chunks.length; at += 1) {
        starts[at] = total;
        total += this.chunks[at].view.shown.length;
        matches += this.chunks[at].matches.length;
      }
      this.starts = starts;
      this.shownSize = total;
      this.matchSize = matches;
      this.onChange(before);
    }

    // Position in the shown list -> a line.
    line(position) {
      let low = 0, high = this.chunks.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.starts[middle] <= position) low = middle; else high = middle - 1;
      }
      const chunk = this.chunks[low];
      const row = chunk && chunk.view.shown[position - this.starts[low]];
      return row === undefined ? null : this.lineAt(chunk, row);
    }

    lineAt(chunk, row) {
      const members = chunk.view.members.get(row) || null;
      return {
        chunk, row, text: chunk.text[row], time: chunk.time[row], attempt: chunk.attempt[row],
        task: chunk.task[row] === 65535 ? null : this.names[chunk.task[row]],
        level: chunk.kind[row] & LEVEL, isStartup: (chunk.kind[row] & STARTUP) !== 0,
        members, isExpanded: Boolean(members && chunk.expanded && chunk.expanded.has(row)),
      };
    }

    tasksOf(line) {
      const numbers = new Set(line.members.map((row) => line.chunk.task[row]));
      return [...numbers].sort((one, other) => one - other).map((number) => this.names[number]);
    }

    // The position of a row, or of the next one that is shown.
    position(chunk, row) {
      const at = this.chunks.indexOf(chunk);
      if (at < 0) return 0;
      const { shown } = chunk.view;
      let low = 0, high = shown.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (shown[middle] < row) low = middle + 1; else high = middle;
      }
      return this.starts[at] + low;
    }

    // The position of the first line at or after `ms`; of `task`, if it has one within the next lines.
    positionAt(ms, task) {
      const number = task ? this.numbers.get(task) : undefined;
      let first = null;
      for (const chunk of this.chunks) {
        if (first === null && chunk.size && chunk.time[chunk.size - 1] < ms && chunk.time[chunk.size - 1] >= 0) continue;
        for (let row = 0; row < chunk.size; row += 1) {
          if (chunk.time[row] < ms) continue;
          if (first === null) first = { chunk, row };
          if (number === undefined || chunk.task[row] === number) return this.position(chunk, row);
          if (chunk.time[row] > ms + 2000) return this.position(first.chunk, first.row);
        }
      }
      return first ? this.position(first.chunk, first.row) : Math.max(0, this.shownSize - 1);
    }

    toggle(line) {
      const { chunk, row } = line;
      if (!chunk.expanded) chunk.expanded = new Set();
      if (!chunk.expanded.delete(row)) chunk.expanded.add(row);
      chunk.view = newView();
      this.select(chunk, chunk.view, this.filter);
      this.changed(0);
    }

    // Applies other filters: all chunks change at once when the last one is ready.
    setFilter(changes, done) {
      const filter = { ...this.filter, ...this.nextFilter, ...changes };
      if (this.stopFilter) this.stopFilter();
      this.nextFilter = filter;
      const chunks = [...this.chunks];
      for (const chunk of chunks) chunk.next = null;
      this.stopFilter = Orch.inSlices(() => {
        const chunk = chunks.pop();
        if (!chunk) return true;
        chunk.next = newView();
        this.select(chunk, chunk.next, filter);
        return false;
      }, () => {
        this.filter = filter;
        for (const chunk of this.chunks) {
          if (!chunk.next) { chunk.next = newView(); this.select(chunk, chunk.next, filter); }
          chunk.view = chunk.next;
          chunk.next = null;
        }
        this.stopFilter = null;
        this.nextFilter = null;
        this.changed(0);
        if (done) done();
      });
    }

    search(chunk) {
      const { pattern, tasks, level } = this.filter;
      for (let row = chunk.searched; row < chunk.size; row += 1) {
        if (tasks && !tasks.has(chunk.task[row])) continue;
        if (level && (chunk.kind[row] & LEVEL) < level) continue;
        if (pattern.test(chunk.text[row])) chunk.matches.push(row);
      }
      chunk.searched = chunk.size;
    }

    // Counts the matches of the filter's pattern again, the newest first.
    searchAll(done) {
      if (this.stopSearch) this.stopSearch();
      this.stopSearch = null;
      for (const chunk of this.chunks) { chunk.matches = []; chunk.searched = 0; }
      if (!this.filter.pattern) { this.changed(0); if (done) done(); return; }
      const chunks = [...this.chunks];
      this.stopSearch = Orch.inSlices(() => {
        const chunk = chunks.pop();
        if (chunk) { this.search(chunk); return false; }
        return true;
      }, () => {
        this.stopSearch = null;
        for (const chunk of this.chunks) this.search(chunk);
        this.changed(0);
        if (done) done();
      });
    }

    // The match after (step 1) or before (-1) the given place; around the end. Returns {chunk, row, number} or null.
    matchFrom(place, step) {
      if (!this.matchSize) return null;
      const all = this.chunks;
      let before = 0, found = null;
      const starts = all.map((chunk) => { const start = before; before += chunk.matches.length; return start; });
      const here = place ? all.indexOf(place.chunk) : -1;
      if (here < 0) {
        found = step > 0 ? 0 : this.matchSize - 1;
      } else {
        const { matches } = all[here];
        let at = 0;
        while (at < matches.length && (step > 0 ? matches[at] <= place.row : matches[at] < place.row)) at += 1;
        found = (starts[here] + at + (step > 0 ? 0 : -1) + this.matchSize) % this.matchSize;
      }
      for (let at = all.length - 1; at >= 0; at -= 1) {
        if (all[at].matches.length && starts[at] <= found) {
          return { chunk: all[at], row: all[at].matches[found - starts[at]], number: found };
        }
      }
      return null;
    }

    // The next line that passes the filter and is an error.
    errorAfter(line) {
      const { tasks } = this.filter, { length } = this.chunks;
      const here = line ? this.chunks.indexOf(line.chunk) : 0;
      for (let step = 0; step <= length; step += 1) {
        const chunk = this.chunks[(here + step) % length];
        for (let row = step || !line ? 0 : line.row + 1; chunk && row < chunk.size; row += 1) {
          if ((chunk.kind[row] & LEVEL) === Orch.LEVELS.ERROR && (!tasks || tasks.has(chunk.task[row]))) return { chunk, row };
        }
      }
      return null;
    }

    // Makes sure that the row is shown, and returns its position.
    reveal(chunk, row) {
      for (const [head, members] of chunk.view.members) {
        if (members.includes(row) && !(chunk.expanded && chunk.expanded.has(head))) {
          if (head !== row || chunk.kind[row] & STARTUP) this.toggle({ chunk, row: head });
          break;
        }
      }
      return this.position(chunk, row);
    }
  };
})((window.Orch = window.Orch || {}));
