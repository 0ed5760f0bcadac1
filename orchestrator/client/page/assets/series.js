// The series of a run: columns that grow, and the values that a curve of some hundred pixels shows.
(function (Orch) {
  "use strict";

  // A live page keeps at most so many rows of a task; then every second one is dropped.
  const MOST_ROWS = 20_000;
  // Charts of more tasks show their minimum, median and maximum, and the tasks that were chosen.
  Orch.MOST_LINES = 40;
  const BASE = ["time", "attempt", "step", "epoch", "loss", "steps_per_s", "examples_per_s", "cpu_percent", "memory_bytes",
    "gpu_percent", "gpu_memory_bytes"];

  Orch.SeriesStore = class {
    // `isOfOneRun`: tasks that report the same are one line. Runs that are compared are not.
    constructor(series, isOfOneRun = true) {
      this.isOfOneRun = isOfOneRun;
      this.tasks = new Map();
      this.metrics = [];
      this.same = new Map();
      this.version = 0;
      this.append(series);
    }

    // Adds the rows of a document or a change.
    append(series) {
      if (!series) return;
      for (const name of series.metrics || []) if (!this.metrics.includes(name)) this.metrics.push(name);
      for (const [task, columns] of Object.entries(series.tasks || {})) this.appendTask(task, columns);
      this.version += 1;
    }

    appendTask(task, columns) {
      let kept = this.tasks.get(task);
      if (!kept) this.tasks.set(task, (kept = { size: 0, columns: { time: [] } }));
      const added = (columns.time || []).length;
      const given = { metrics: {}, ...columns };
      const names = new Set(Object.keys(kept.columns));
      for (const name of BASE) if (given[name]) names.add(name);
      for (const name of Object.keys(given.metrics)) names.add(`metric ${name}`);
      for (const name of names) {
        let column = kept.columns[name];
        if (!column) kept.columns[name] = column = new Array(kept.size).fill(null);
        const source = name.startsWith("metric ") ? given.metrics[name.slice(7)] : given[name];
        for (let row = 0; row < added; row += 1) column.push(source && source[row] !== undefined ? source[row] : null);
      }
      kept.size += added;
      kept.steps = null;
      if (kept.size > MOST_ROWS) this.thin(kept);
    }

    thin(kept) {
      const last = kept.size - 1;
      for (const [name, column] of Object.entries(kept.columns)) {
        kept.columns[name] = column.filter((_, row) => row % 2 === 0 || row === last);
      }
      kept.size = kept.columns.time.length;
      kept.steps = null;
    }

    // Puts the tasks into the order of these names; others come last.
    sort(names) {
      const places = new Map(names.map((name, at) => [name, at]));
      const place = (name) => (places.has(name) ? places.get(name) : Infinity);
      const known = [...this.tasks.keys()];
      const sorted = [...known].sort((one, other) => (place(one) < place(other) ? -1 : place(one) > place(other) ? 1 : 0));
      if (sorted.some((name, at) => name !== known[at])) this.tasks = new Map(sorted.map((name) => [name, this.tasks.get(name)]));
    }

    has(name) {
      for (const { columns } of this.tasks.values()) {
        if (columns[name] && columns[name].some(Orch.isNumber)) return true;
      }
      return false;
    }

    last(task, name) {
      const kept = this.tasks.get(task);
      const column = kept && kept.columns[name];
      if (!column) return null;
      for (let row = column.length - 1; row >= 0; row -= 1) if (column[row] !== null) return column[row];
      return null;
    }

    // x of every row: its time, or the last known step.
    xs(task, axis) {
      const kept = this.tasks.get(task);
      if (axis === "time") return kept.columns.time;
      if (!kept.steps) {
        let step = null;
        kept.steps = (kept.columns.step || kept.columns.time.map(() => null)).map((value) => (value === null ? step : (step = value)));
      }
      return kept.steps;
    }

    // The smallest and largest x of all tasks.
    range(axis) {
      let low = Infinity, high = -Infinity;
      for (const task of this.tasks.keys()) {
        for (const x of this.xs(task, axis)) {
          if (x === null) continue;
          if (x < low) low = x;
          if (x > high) high = x;
        }
      }
      return low <= high ? [low, high] : null;
    }

    // One value a slot of [low, high]: the one farthest from the slot's mean, so that a peak stays. undefined: none
    // there; null: a gap, where another attempt begins. `at` gets the exact x of each slot.
    slots(task, name, axis, low, high, size, at) {
      const kept = this.tasks.get(task);
      const column = kept.columns[name];
      const out = new Array(size).fill(undefined);
      if (!column) return out;
      const xs = this.xs(task, axis), attempts = kept.columns.attempt;
      const scale = high > low ? size / (high - low) : 0;
      let attempt = null, lastSlot = 0;
      for (let row = 0; row < kept.size; ) {
        const value = column[row], x = xs[row];
        if (value === null || x === null || x < low || x > high) { row += 1; continue; }
        const slot = Math.min(size - 1, Math.floor((x - low) * scale));
        let sum = 0, count = 0, end = row;
        for (; end < kept.size; end += 1) {
          if (column[end] === null || xs[end] === null) continue;
          if (Math.min(size - 1, Math.floor((xs[end] - low) * scale)) !== slot || xs[end] > high) break;
          sum += column[end];
          count += 1;
        }
        const mean = sum / count;
        let best = row;
        for (let other = row; count > 2 && other < end; other += 1) {
          if (column[other] !== null && Math.abs(column[other] - mean) > Math.abs(column[best] - mean)) best = other;
        }
        const now = attempts ? attempts[row] : null;
        if (attempt !== null && now !== attempt && axis === "time") {
          for (let between = lastSlot + 1; between < slot; between += 1) out[between] = null;
        }
        attempt = now;
        lastSlot = slot;
        out[slot] = column[best];
        if (at && at[slot] === undefined) at[slot] = xs[best];
        row = Math.max(end, row + 1);
      }
      return out;
    }

    // The data of a chart: xs, and lines { tasks, values } with equal lines merged.
    chart(name, axis, low, high, size, wanted) {
      const at = new Array(size).fill(undefined);
      const lines = [];
      for (const task of this.tasks.keys()) {
        if (wanted && !wanted.has(task)) continue;
        const values = this.slots(task, name, axis, low, high, size, at);
        if (!values.some(Orch.isNumber)) continue;
        const same = this.isOfOneRun && this.tasks.size <= Orch.MOST_LINES && lines.find((line) => this.isSame(line.tasks[0], task, name));
        if (same) same.tasks.push(task); else lines.push({ tasks: [task], values });
      }
      const width = (high - low) / size;
      const xs = at.map((x, slot) => (x === undefined ? low + (slot + 0.5) * width : x));
      return { xs, lines };
    }

    // Found again only after both tasks have grown by a quarter.
    isSame(one, other, name) {
      const key = `${name} ${one} ${other}`;
      const size = this.tasks.get(one).size + this.tasks.get(other).size;
      const known = this.same.get(key);
      if (known && size < known.size * 1.25) return known.result;
      const result = this.areEqual(one, other, name);
      this.same.set(key, { size, result });
      return result;
    }

    // Whether two tasks report the same values at the same steps: as all workers of one model do.
    areEqual(one, other, name) {
      if (/^[cg]pu_percent$|^(gpu_)?memory_bytes$|_per_s$/.test(name)) return false;
      const known = new Map();
      const key = (columns, row) => `${columns.attempt ? columns.attempt[row] : 0} ${columns.step ? columns.step[row] : columns.time[row]}`;
      const first = this.tasks.get(one), second = this.tasks.get(other);
      for (let row = 0; row < first.size; row += 1) {
        const value = first.columns[name] && first.columns[name][row];
        if (Orch.isNumber(value)) known.set(key(first.columns, row), value);
      }
      let common = 0, values = 0;
      for (let row = 0; row < second.size; row += 1) {
        const value = second.columns[name] && second.columns[name][row];
        if (!Orch.isNumber(value)) continue;
        values += 1;
        const same = known.get(key(second.columns, row));
        if (same === undefined) continue;
        if (Math.abs(same - value) > 1e-5 * Math.max(Math.abs(same), Math.abs(value))) return false;
        common += 1;
      }
      return common >= Math.min(3, values, known.size) && common >= 0.05 * Math.min(values, known.size);
    }

    // Minimum, median and maximum of many lines in each slot; slots without a value take the line's last one.
    static band(lines, size) {
      const low = new Array(size), middle = new Array(size), high = new Array(size);
      const last = lines.map(() => null);
      const firstSlot = lines.map((line) => line.values.findIndex(Orch.isNumber));
      const lastSlot = lines.map((line) => line.values.findLastIndex(Orch.isNumber));
      for (let slot = 0; slot < size; slot += 1) {
        const values = [];
        for (let at = 0; at < lines.length; at += 1) {
          const value = lines[at].values[slot];
          if (Orch.isNumber(value)) last[at] = value;
          if (last[at] !== null && slot >= firstSlot[at] && slot <= lastSlot[at]) values.push(last[at]);
        }
        if (!values.length) { low[slot] = middle[slot] = high[slot] = undefined; continue; }
        values.sort((one, other) => one - other);
        low[slot] = values[0];
        middle[slot] = values[values.length >> 1];
        high[slot] = values[values.length - 1];
      }
      return { low, middle, high };
    }
  };
})((window.Orch = window.Orch || {}));
