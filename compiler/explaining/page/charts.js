// Time as pictures: a strip for each plan, predicted against measured.

// Each plan as one strip on a common scale, a piece for each kernel in the order of its run.
class Strip {
  constructor(side, mostUs, on) {
    this.side = side;
    this.mostUs = mostUs;
    this.lit = new Set();
    this.dim = null;
    this.canvas = el("canvas", {
      class: "strip",
      role: "img",
      "aria-label": `${CALLED[side.name]}: ${microseconds(side.total)} predicted, kernel by kernel; the table has them one by one`,
    });
    this.host = el(
      "div",
      { class: "strip-row" },
      el(
        "div",
        {},
        el("strong", {}, CALLED[side.name]),
        el("br"),
        el("span", { class: "quiet" }, microseconds(side.total)),
      ),
      this.canvas,
    );
    this.later = once(() => this.draw());
    this.canvas.addEventListener("pointermove", (event) => on.hover(this.at(event), event));
    this.canvas.addEventListener("pointerleave", (event) => on.hover(null, event));
    this.canvas.addEventListener("click", (event) => {
      const kernel = this.at(event);
      if (kernel) on.pin(kernel);
    });
    new ResizeObserver(this.later).observe(this.canvas);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const us = ((event.clientX - box.left) / box.width) * this.mostUs;
    return (
      this.side.kernels.find(
        (k) => !k.idle && us >= k.start && us < k.start + k.told.predicted_us,
      ) || null
    );
  }

  mark(lit, dim) {
    this.lit = lit;
    this.dim = dim;
    this.later();
  }

  draw() {
    const { canvas } = this,
      ratio = window.devicePixelRatio || 1;
    const wide = canvas.clientWidth,
      high = canvas.clientHeight;
    if (!wide) return;
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    const ink = canvas.getContext("2d");
    ink.scale(ratio, ratio);
    const colours = Object.fromEntries(
      ["launch", "memory", "arithmetic", "library", "nothing"].map((n) => [n, colour(n)]),
    );
    const only = colour(`only-${this.side.name}`),
      accent = colour("accent");
    for (const kernel of this.side.kernels) {
      const x = (kernel.start / this.mostUs) * wide,
        w = (kernel.told.predicted_us / this.mostUs) * wide;
      ink.globalAlpha = this.dim !== null && !this.dim.has(kernel) ? 0.15 : 1;
      ink.fillStyle = colours[kernel.told.bound_by];
      ink.fillRect(x, 4, Math.max(0.4, w > 3 ? w - 1 : w), high - 8);
      if (kernel.only) {
        ink.fillStyle = only;
        ink.fillRect(x, high - 4, Math.max(1, w), 4);
      }
      if (this.lit.has(kernel)) {
        ink.globalAlpha = 1;
        ink.fillStyle = accent;
        ink.fillRect(x, 0, Math.max(2, w), 3);
      }
    }
  }
}

// Predicted against measured on logarithmic axes. points: {x, y, low, high, name, kind, told}
function scatter(points, label, on) {
  const wide = 460,
    high = 340,
    left = 58,
    bottom = 44,
    right = 14,
    top = 12;
  const values = points.flatMap((p) => [p.x, p.y]).filter((v) => v > 0);
  const low = Math.log10(Math.min(...values)),
    up = Math.log10(Math.max(...values));
  const spare = Math.max(0.03, 0.08 * (up - low));
  const from = low - spare,
    to = up + spare;
  const x = (v) => left + ((Math.log10(v) - from) / (to - from)) * (wide - left - right);
  const y = (v) => high - bottom - ((Math.log10(v) - from) / (to - from)) * (high - top - bottom);
  const inside = (v) => Math.min(10 ** to, Math.max(10 ** from, v));
  const chart = svg("svg", {
    class: "scatter",
    viewBox: `0 0 ${wide} ${high}`,
    role: "group",
    "aria-label": label,
  });
  for (const tick of ticks(10 ** from, 10 ** to)) {
    chart.append(
      svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: high - bottom }),
      svg("line", { class: "grid", x1: left, x2: wide - right, y1: y(tick), y2: y(tick) }),
      svg(
        "text",
        { class: "tick", x: x(tick), y: high - bottom + 16, "text-anchor": "middle" },
        plain(tick),
      ),
      svg(
        "text",
        { class: "tick", x: left - 6, y: y(tick) + 4, "text-anchor": "end" },
        plain(tick),
      ),
    );
  }
  chart.append(
    svg("line", {
      class: "same",
      x1: x(10 ** from),
      y1: y(10 ** from),
      x2: x(10 ** to),
      y2: y(10 ** to),
    }),
    svg(
      "text",
      { class: "tick", x: (left + wide - right) / 2, y: high - 6, "text-anchor": "middle" },
      "predicted, µs",
    ),
    svg(
      "text",
      {
        class: "tick",
        x: 0,
        y: 0,
        transform: `translate(14,${(top + high - bottom) / 2}) rotate(-90)`,
        "text-anchor": "middle",
      },
      "measured, µs",
    ),
  );
  for (const p of points) {
    if (p.low !== null && points.length <= 60) {
      chart.append(
        svg("line", {
          class: "whisker",
          x1: x(inside(p.low)),
          x2: x(inside(p.high)),
          y1: y(p.y),
          y2: y(p.y),
        }),
      );
    }
  }
  for (const p of points) {
    const look = (event) => on.look(p, event),
      leave = (event) => on.look(null, event);
    chart.append(
      svg("circle", {
        class: `point ${p.kind}`,
        cx: x(p.x),
        cy: y(p.y),
        r: p.kind === "plain" ? 4 : 6,
        tabindex: 0,
        role: "img",
        "aria-label": `${p.name}: predicted ${microseconds(p.x)}, measured ${microseconds(p.y)}`,
        onpointerover: look,
        onpointerleave: leave,
        onfocus: look,
        onblur: leave,
      }),
    );
  }
  return chart;
}

// Round values between, some four to eight of them.
function ticks(from, to) {
  const decades = Math.log10(to / from),
    found = [];
  if (decades < 0.7) {
    const step =
      [1, 2, 5]
        .map((m) => [0.001, 0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((d) => m * d))
        .flat()
        .sort((a, b) => a - b)
        .find((s) => (to - from) / s <= 7) || to - from;
    for (let at = Math.ceil(from / step); at * step <= to; at += 1)
      found.push(Number((at * step).toPrecision(6)));
    return found;
  }
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1) {
    for (const m of decades > 3 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5]) {
      const value = Number((m * 10 ** power).toPrecision(3));
      if (value >= from && value <= to) found.push(value);
    }
  }
  return found;
}
