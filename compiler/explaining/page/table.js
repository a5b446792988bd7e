// A table of any length: only the rows in sight have elements. Sorts by a click on a title.

const ROW = 30;

class LongTable {
  // columns: {title, width, of(row) -> what it is sorted by, cell(row) -> text or element, right}
  constructor(host, label, columns, on) {
    this.columns = columns;
    this.on = on;
    this.rows = [];
    this.made = new Map();
    this.active = 0;
    this.by = null;
    this.down = false;
    this.wide = columns.map((column) => column.width).join(" ");
    this.head = el(
      "div",
      { class: "row head", role: "row", style: { "grid-template-columns": this.wide } },
      columns.map((column, at) =>
        el(
          "div",
          { role: "columnheader", class: column.right ? "right" : "" },
          el(
            "button",
            { type: "button", title: column.note, onclick: () => this.sort(at) },
            column.title,
          ),
        ),
      ),
    );
    this.body = el("div", { class: "rows", role: "rowgroup" });
    this.none = el("p", { class: "none", hidden: true }, "Nothing of the kind.");
    this.scroll = el(
      "div",
      { class: "long", role: "grid", "aria-label": label },
      this.head,
      this.body,
      this.none,
    );
    host.replaceChildren(this.scroll);
    this.later = once(() => this.draw());
    this.scroll.addEventListener("scroll", this.later, { passive: true });
    const of = (event) => {
      const row = event.target.closest(".row[data-at]");
      return row ? [this.rows[Number(row.dataset.at)], row] : [null, null];
    };
    this.body.addEventListener("pointerover", (event) => this.on.look(...of(event), event));
    this.body.addEventListener("pointerleave", (event) => this.on.look(null, null, event));
    this.body.addEventListener("focusin", (event) => this.on.look(...of(event), event));
    this.body.addEventListener("focusout", (event) => this.on.look(null, null, event));
    this.body.addEventListener("click", (event) => {
      const [row, element] = of(event);
      if (row) {
        this.active = Number(element.dataset.at);
        this.draw();
        this.on.open(row);
      }
    });
    this.body.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(this.later).observe(this.scroll);
  }

  show(rows) {
    this.given = rows;
    this.arrange();
    this.scroll.scrollTop = 0;
  }

  sort(at) {
    this.down = this.by === at ? !this.down : Boolean(this.columns[at].right);
    this.by = at;
    this.arrange();
  }

  arrange() {
    this.rows = this.given;
    if (this.by !== null) {
      const { of } = this.columns[this.by],
        way = this.down ? -1 : 1;
      const keys = new Map(this.given.map((row) => [row, of(row)]));
      const missing = this.given.filter((row) => keys.get(row) === null);
      const there = this.given.filter((row) => keys.get(row) !== null);
      this.rows = [...there.sort((a, b) => way * compared(keys.get(a), keys.get(b))), ...missing];
    }
    [...this.head.children].forEach((cell, at) => {
      cell.setAttribute(
        "aria-sort",
        at !== this.by ? "none" : this.down ? "descending" : "ascending",
      );
    });
    this.active = Math.max(0, Math.min(this.active, this.rows.length - 1));
    this.body.style.height = `${this.rows.length * ROW}px`;
    this.scroll.setAttribute("aria-rowcount", this.rows.length + 1);
    this.none.hidden = this.rows.length > 0;
    for (const element of this.made.values()) element.remove();
    this.made.clear();
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 6);
    const last = Math.min(
      this.rows.length,
      Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / ROW) + 6,
    );
    const wanted = new Set();
    for (let at = first; at < last; at += 1) wanted.add(at);
    if (this.rows.length) wanted.add(this.active);
    renew(this.made, wanted, (at) => this.body.appendChild(this.row(at)));
    for (const [at, element] of this.made)
      element.setAttribute("tabindex", at === this.active ? 0 : -1);
  }

  row(at) {
    const row = this.rows[at];
    return el(
      "div",
      {
        class: "row",
        role: "row",
        "data-at": at,
        "aria-rowindex": at + 2,
        style: { top: `${at * ROW}px`, "grid-template-columns": this.wide },
      },
      this.columns.map((column) =>
        el("div", { role: "gridcell", class: column.right ? "right" : "" }, column.cell(row)),
      ),
    );
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.scroll.clientHeight / ROW) - 2);
    const to = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + to));
      const y = this.active * ROW,
        seen = this.scroll.clientHeight - 2 * ROW;
      if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
      else if (y > this.scroll.scrollTop + seen) this.scroll.scrollTop = y - seen;
      this.draw();
      this.made.get(this.active).focus({ preventScroll: true });
    } else if (event.key === "Enter") {
      this.on.open(this.rows[this.active]);
    }
  }
}

// Numbers, texts and lists of numbers.
function compared(a, b) {
  if (Array.isArray(a)) {
    for (let at = 0; at < a.length; at += 1) if (a[at] !== b[at]) return a[at] < b[at] ? -1 : 1;
    return 0;
  }
  return a < b ? -1 : a > b ? 1 : 0;
}
