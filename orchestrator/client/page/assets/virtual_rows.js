// A list that keeps only the visible rows in the document, for a million rows of equal height.
(function (Orch) {
  "use strict";

  // Browsers limit the height of an element (33 million device pixels). A longer list is scrolled in proportion.
  const MOST_PIXELS = 10_000_000;
  const OVERSCAN = 6;

  // box: the scrolling element. options: rowHeight, render(row element, index), count(), make() -> row element,
  // fixed: pixels of a sticky head above the rows inside the box.
  Orch.VirtualRows = class {
    constructor(box, options) {
      this.box = box;
      this.options = options;
      this.rowHeight = options.rowHeight;
      this.first = 0; // The row at the top, with a fraction.
      this.isAtEnd = false;
      this.pool = [];
      this.space = Orch.el("div.virtual-space", { role: "presentation" });
      this.sheet = Orch.el("div.virtual-sheet", { role: options.role || "presentation" });
      this.space.appendChild(this.sheet);
      box.appendChild(this.space);
      this.draw = Orch.onceAFrame(() => this.render());
      box.addEventListener("scroll", () => this.onScroll(), { passive: true });
      box.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
      this.observer = new ResizeObserver(() => { this.resized(); });
      this.observer.observe(box);
    }

    close() { this.observer.disconnect(); }

    get height() { return Math.max(0, this.box.clientHeight - (this.options.fixed || 0)); }
    get visible() { return this.height / this.rowHeight; }
    get isScaled() { return this.options.count() * this.rowHeight > MOST_PIXELS; }
    get lastFirst() { return Math.max(0, this.options.count() - this.visible); }

    // The number of rows, or their order, has changed. `added`: rows that came before the one at the top.
    changed(added = 0) {
      const count = this.options.count();
      const pixels = Math.min(count * this.rowHeight, MOST_PIXELS);
      if (pixels !== this.pixels) {
        this.pixels = pixels;
        this.space.style.height = `${pixels}px`;
      }
      if (added) this.first += added;
      if (this.isAtEnd && this.options.follows) this.first = this.lastFirst;
      this.first = Math.min(this.first, this.lastFirst);
      this.place();
      this.draw();
    }

    resized() {
      if (this.isAtEnd && this.options.follows) this.first = this.lastFirst;
      this.first = Math.min(this.first, this.lastFirst);
      this.place();
      this.draw();
    }

    // Sets the scroll bar from `first`.
    place() {
      const range = Math.max(0, this.pixels - this.height);
      const top = this.isScaled
        ? (this.lastFirst ? (this.first / this.lastFirst) * range : 0)
        : this.first * this.rowHeight;
      this.placed = Math.round(top);
      if (Math.abs(this.box.scrollTop - this.placed) >= 1) this.box.scrollTop = this.placed;
    }

    onScroll() {
      const top = this.box.scrollTop;
      if (Math.abs(top - this.placed) > 1) {
        const range = Math.max(1, this.pixels - this.height);
        this.first = this.isScaled ? (top / range) * this.lastFirst : top / this.rowHeight;
        this.placed = top;
      }
      this.noteEnd();
      this.draw();
    }

    // A scaled list is moved by its own rows: the bar alone would skip some.
    onWheel(event) {
      if (!this.isScaled || event.ctrlKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 1 : event.deltaMode === 2 ? this.visible : 1 / this.rowHeight;
      this.moveTo(this.first + event.deltaY * unit);
    }

    noteEnd() {
      const wasAtEnd = this.isAtEnd;
      this.isAtEnd = this.first >= this.lastFirst - 1.5;
      if (wasAtEnd !== this.isAtEnd && this.options.onEnd) this.options.onEnd(this.isAtEnd);
    }

    moveTo(first) {
      this.first = Math.max(0, Math.min(first, this.lastFirst));
      this.place();
      this.noteEnd();
      this.draw();
    }

    // Moves so that the row is in view; in the upper third if it was not.
    show(index) {
      if (index < Math.ceil(this.first) || index > this.first + this.visible - 2) this.moveTo(index - this.visible / 3);
      else this.draw();
    }

    render() {
      const { options, rowHeight } = this;
      const count = options.count();
      const from = Math.max(0, Math.floor(this.first) - OVERSCAN);
      const until = Math.min(count, Math.ceil(this.first + this.visible) + OVERSCAN);
      const needed = Math.max(0, until - from);
      while (this.pool.length < needed) {
        const row = options.make();
        this.pool.push(row);
        this.sheet.appendChild(row);
      }
      // A row keeps its element while it is visible: then its focus and selection stay.
      const size = this.pool.length;
      for (let at = 0; at < size; at += 1) {
        const row = this.pool[(from + at) % size];
        const index = from + at;
        row.hidden = index >= until;
        if (row.hidden) continue;
        row.style.top = `${Math.round(index * rowHeight - from * rowHeight)}px`;
        options.render(row, index);
      }
      // The sheet lies where the bar stands, whatever the scale is.
      const top = this.box.scrollTop - (this.first - from) * rowHeight;
      this.sheet.style.transform = `translateY(${top.toFixed(2)}px)`;
      this.from = from;
      this.until = until;
      if (options.drawn) options.drawn(from, until);
    }
  };
})((window.Orch = window.Orch || {}));
