// The plans as drawings: kernels as boxes, data as lines. Only what is in sight has elements.

const MARGIN = 240;
const SCALES = [0.04, 1.6];

class Pane {
  constructor(side, longestUs, on) {
    this.side = side;
    this.on = on;
    this.longestUs = longestUs;
    this.scale = 1;
    this.boxes = new Map();
    this.lines = new Map();
    this.lit = new Set();
    this.dim = null;
    this.kept = null;
    this.sorted = [...side.kernels].sort((a, b) => a.y - b.y);
    this.current = this.sorted[0] || null;
    this.flowLayer = svg("g", { class: "flows" });
    this.boxLayer = svg("g", { class: "boxes" });
    this.picture = svg(
      "svg",
      { role: "group", "aria-label": `${CALLED[side.name]}: kernels` },
      svg("defs", {}, arrow("arrow"), arrow("arrow-lit"), clip(side)),
      this.flowLayer,
      this.boxLayer,
    );
    this.scroll = el("div", { class: "scroll" }, this.picture);
    this.map = el("canvas", {
      class: "map",
      "aria-hidden": "true",
      title: "The whole plan; click to go there",
    });
    const only = side.kernels.filter((kernel) => kernel.only).length;
    this.view = el("div", { class: "view" }, this.scroll, this.map);
    this.host = el(
      "figure",
      { class: "pane", "data-side": side.name },
      el(
        "figcaption",
        {},
        el("strong", {}, CALLED[side.name]),
        " ",
        `${side.kernels.filter((k) => !k.idle).length} kernels and library calls, predicted `,
        el("b", {}, microseconds(side.plan.predicted_us)),
        side.plan.measured_us === null ? "" : `, measured ${microseconds(side.plan.measured_us)}`,
        only ? el("span", { class: "tag" }, `${only} only here`) : "",
      ),
      this.view,
    );
    this.draw = this.draw.bind(this);
    this.later = once(this.draw);
    this.listen();
  }

  listen() {
    const of = (event) => {
      const box = event.target.closest && event.target.closest("g.kernel");
      return box ? this.side.kernels[Number(box.dataset.at)] : null;
    };
    this.scroll.addEventListener("scroll", () => {
      this.on.scrolled(this);
      this.later();
    });
    this.picture.addEventListener("pointerover", (event) => this.on.hover(of(event), event));
    this.picture.addEventListener("pointerleave", (event) => this.on.hover(null, event));
    this.picture.addEventListener("focusin", (event) => {
      const kernel = of(event);
      if (!kernel) return;
      this.kept = kernel;
      this.on.hover(kernel, event);
    });
    this.picture.addEventListener("focusout", (event) => {
      this.kept = null;
      this.on.hover(null, event);
    });
    this.picture.addEventListener("click", (event) => {
      const kernel = of(event);
      if (kernel) {
        this.current = kernel;
        this.on.pin(kernel);
      }
    });
    this.picture.addEventListener("keydown", (event) => this.key(event, of(event)));
    this.scroll.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.on.zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
      },
      { passive: false },
    );
    const jump = (event) => {
      const box = this.map.getBoundingClientRect();
      const part = (event.clientY - box.top) / box.height;
      this.scroll.scrollTop = part * this.side.height * this.scale - this.scroll.clientHeight / 2;
    };
    this.map.addEventListener("pointerdown", (event) => {
      this.map.setPointerCapture(event.pointerId);
      jump(event);
    });
    this.map.addEventListener("pointermove", (event) => {
      if (event.buttons) jump(event);
    });
  }

  key(event, kernel) {
    if (!kernel) return;
    const to = {
      ArrowUp: () =>
        nearest(
          kernel,
          kernel.from.map((f) => this.side.kernels[f.from]),
        ),
      ArrowDown: () =>
        nearest(
          kernel,
          kernel.into.map((f) => this.side.kernels[f.to]),
        ),
      ArrowLeft: () => this.beside(kernel, -1),
      ArrowRight: () => this.beside(kernel, 1),
      Home: () => this.sorted[0],
      End: () => this.sorted[this.sorted.length - 1],
    }[event.key];
    if (to) {
      event.preventDefault();
      this.focus(to() || kernel);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.on.pin(kernel);
    }
  }

  beside(kernel, way) {
    const there = this.side.kernels.filter((k) => k.y === kernel.y && (k.x - kernel.x) * way > 0);
    return nearest(kernel, there) || this.side.kernels[this.side.run[kernel.place + way]];
  }

  // Makes a kernel the current one, brings it in sight and gives it the focus.
  focus(kernel) {
    this.show(kernel);
    this.current = this.kept = kernel;
    this.draw();
    this.boxes.get(kernel).focus({ preventScroll: true });
  }

  show(kernel) {
    const { scroll, scale } = this;
    const y = kernel.y * scale,
      x = kernel.x * scale,
      high = BOX.height * scale,
      wide = BOX.width * scale;
    if (y < scroll.scrollTop || y + high > scroll.scrollTop + scroll.clientHeight) {
      scroll.scrollTop = y - scroll.clientHeight / 2 + high / 2;
    }
    if (x < scroll.scrollLeft || x + wide > scroll.scrollLeft + scroll.clientWidth) {
      scroll.scrollLeft = x - scroll.clientWidth / 2 + wide / 2;
    }
  }

  // Which kernels stand out, and which step back; null for none of them.
  mark(lit, dim) {
    this.lit = lit;
    this.dim = dim;
    this.later();
  }

  zoomTo(scale) {
    const { scroll } = this;
    const middle = (scroll.scrollTop + scroll.clientHeight / 2) / this.scale;
    const centre = (scroll.scrollLeft + scroll.clientWidth / 2) / this.scale;
    this.scale = Math.min(SCALES[1], Math.max(SCALES[0], scale));
    this.picture.setAttribute("width", this.side.width * this.scale);
    this.picture.setAttribute("height", this.side.height * this.scale);
    this.view.style.height = `max(180px, min(64vh, 620px, ${Math.ceil(this.side.height * this.scale) + 20}px))`;
    this.picture.setAttribute("viewBox", `0 0 ${this.side.width} ${this.side.height}`);
    scroll.scrollTop = middle * this.scale - scroll.clientHeight / 2;
    scroll.scrollLeft = centre * this.scale - scroll.clientWidth / 2;
    this.later();
  }

  centre() {
    this.scroll.scrollLeft = (this.side.width * this.scale - this.scroll.clientWidth) / 2;
  }

  draw() {
    const { scroll, scale } = this;
    const top = scroll.scrollTop / scale - MARGIN,
      bottom = (scroll.scrollTop + scroll.clientHeight) / scale + MARGIN;
    const left = scroll.scrollLeft / scale - MARGIN,
      right = (scroll.scrollLeft + scroll.clientWidth) / scale + MARGIN;
    this.picture.classList.toggle("far", scale < 0.45);
    const seen = new Set();
    for (let at = this.firstBelow(top - BOX.height); at < this.sorted.length; at += 1) {
      const kernel = this.sorted[at];
      if (kernel.y > bottom) break;
      if (kernel.x + BOX.width >= left && kernel.x <= right) seen.add(kernel);
    }
    for (const kernel of [this.kept, this.current]) if (kernel) seen.add(kernel);
    renew(this.boxes, seen, (kernel) => this.boxLayer.appendChild(this.box(kernel)));
    const flows = new Set();
    for (const flow of this.side.flows) {
      const from = this.side.kernels[flow.from],
        to = this.side.kernels[flow.to];
      if (Math.max(from.y, to.y) < top || Math.min(from.y, to.y) > bottom) continue;
      if (Math.max(from.x, to.x) + BOX.width < left || Math.min(from.x, to.x) > right) continue;
      flows.add(flow);
    }
    renew(this.lines, flows, (flow) => this.flowLayer.appendChild(this.line(flow)));
    for (const [kernel, box] of this.boxes) {
      box.classList.toggle("lit", this.lit.has(kernel));
      box.classList.toggle("dim", this.dim !== null && !this.dim.has(kernel));
      box.setAttribute("tabindex", kernel === this.current ? 0 : -1);
    }
    for (const [flow, line] of this.lines) {
      const ends = [this.side.kernels[flow.from], this.side.kernels[flow.to]];
      const lit = ends.some((kernel) => kernel === this.on.looked());
      line.classList.toggle("lit", lit);
      line.setAttribute("marker-end", `url(#${lit ? "arrow-lit" : "arrow"})`);
    }
    this.drawMap();
  }

  firstBelow(y) {
    let low = 0,
      high = this.sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.sorted[middle].y < y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  box(kernel) {
    const { told } = kernel;
    const share = this.longestUs ? told.predicted_us / this.longestUs : 0;
    const label =
      `${kernel.title}: ${told.nodes.length} nodes, ${microseconds(told.predicted_us)}, ` +
      `bound by ${told.bound_by}${kernel.only ? ", only in this plan" : ""}`;
    return svg(
      "g",
      {
        class: `kernel bound-${told.bound_by}${kernel.only ? " only" : ""}`,
        transform: `translate(${kernel.x},${kernel.y})`,
        role: "button",
        "aria-label": label,
        "data-at": kernel.at,
        "clip-path": `url(#clip-${this.side.name})`,
      },
      svg("rect", { class: "body", width: BOX.width, height: BOX.height, rx: 6 }),
      svg("rect", { class: "stripe", width: 6, height: BOX.height, rx: 3 }),
      svg("rect", {
        class: "share",
        x: 12,
        y: BOX.height - 8,
        height: 4,
        rx: 2,
        width: Math.max(1, share * (BOX.width - 22)),
      }),
      svg("text", { class: "name", x: 14, y: 20 }, cut(kernel.title, kernel.only ? 15 : 23)),
      svg(
        "text",
        { class: "detail", x: 14, y: 39 },
        cut(`${kernel.short} · ${microseconds(told.predicted_us)}`, 29),
      ),
      ...(kernel.only
        ? [svg("text", { class: "badge", x: BOX.width - 8, y: 20 }, "only here")]
        : []),
    );
  }

  line(flow) {
    const from = this.side.kernels[flow.from],
      to = this.side.kernels[flow.to];
    return svg("path", {
      class: flow.weak ? "flow weak" : "flow",
      "marker-end": "url(#arrow)",
      "stroke-width": flow.weak ? 1 : 1 + Math.min(3, Math.log10(1 + flow.bytes / 4096)),
      d: way(from, to, flow.from % 3),
    });
  }

  drawMap() {
    const { map, side, scroll, scale } = this;
    const wide = map.clientWidth,
      high = map.clientHeight,
      ratio = window.devicePixelRatio || 1;
    if (!wide || !high) return;
    if (map.width !== wide * ratio || map.height !== high * ratio) {
      map.width = wide * ratio;
      map.height = high * ratio;
    }
    const ink = map.getContext("2d");
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.clearRect(0, 0, wide, high);
    const colours = {
      only: colour(`only-${side.name}`),
      plain: colour("quiet"),
      lit: colour("accent"),
    };
    const y = high / side.height,
      x = wide / side.width;
    for (const kernel of side.kernels) {
      ink.globalAlpha = this.dim !== null && !this.dim.has(kernel) ? 0.15 : 1;
      ink.fillStyle = this.lit.has(kernel)
        ? colours.lit
        : kernel.only
          ? colours.only
          : colours.plain;
      ink.fillRect(
        kernel.x * x,
        kernel.y * y,
        Math.max(2, BOX.width * x),
        Math.max(kernel.only ? 2 : 1, BOX.height * y * 0.8),
      );
    }
    ink.globalAlpha = 1;
    ink.strokeStyle = colours.lit;
    ink.strokeRect(
      0.5,
      (scroll.scrollTop / scale) * y + 0.5,
      wide - 1,
      Math.max(3, (scroll.clientHeight / scale) * y) - 1,
    );
  }
}

function arrow(id) {
  return svg(
    "marker",
    {
      id,
      class: id,
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      markerUnits: "userSpaceOnUse",
      orient: "auto",
    },
    svg("path", { d: "M0,0L8,4L0,8z" }),
  );
}

// From one box down to another; past those that lie between, in one of the lanes beside the column.
function way(from, to, lane) {
  const x1 = from.x + BOX.width / 2,
    y1 = from.y + BOX.height,
    x2 = to.x + BOX.width / 2,
    y2 = to.y - 3;
  const next = y2 - y1 <= BOX.down || Math.abs(x1 - x2) >= BOX.width + BOX.across;
  const bend = Math.max(18, Math.min(90, (y2 - y1) / 2));
  if (next) return `M${x1},${y1}C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
  const aside = BOX.width / 3,
    beside = Math.max(x1, x2) + BOX.width / 2 + 6 + 5 * lane;
  return (
    `M${x1 + aside},${y1}C${x1 + aside},${y1 + 24} ${beside},${y1 + 12} ${beside},${y1 + BOX.down}` +
    `V${y2 - BOX.down}C${beside},${y2 - 12} ${x2 + aside},${y2 - 24} ${x2 + aside},${y2}`
  );
}

// Text ends with its box, whatever font there is; the frame may stand out a little.
function clip(side) {
  return svg(
    "clipPath",
    { id: `clip-${side.name}` },
    svg("rect", { x: -3, y: -3, width: BOX.width + 6, height: BOX.height + 6 }),
  );
}

// Elements for what is wanted and for nothing else.
function renew(made, wanted, make) {
  for (const [thing, element] of made) {
    if (!wanted.has(thing)) {
      element.remove();
      made.delete(thing);
    }
  }
  for (const thing of wanted) if (!made.has(thing)) made.set(thing, make(thing));
}

function nearest(kernel, others) {
  const far = (other) => Math.abs(other.x - kernel.x) + Math.abs(other.y - kernel.y) / 4;
  return others.reduce(
    (best, other) => (best === null || far(other) < far(best) ? other : best),
    null,
  );
}
