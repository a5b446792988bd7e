// The two long tables: kernels with their time, possible fusions with what became of them.

function kernelTable(host, graph, most, on) {
  const longest = Math.max(
    ...graph.sides.flatMap((s) =>
      s.kernels.map((k) => Math.max(k.told.predicted_us, k.told.measured_us || 0)),
    ),
    1e-9,
  );
  const timed = graph.sides.some((s) => s.kernels.some((k) => k.told.measured_us !== null));
  const columns = [
    {
      title: "#",
      width: "44px",
      right: true,
      note: "Place in the run",
      of: (k) => k.place,
      cell: (k) => String(k.place + 1),
    },
    {
      title: "kernel",
      width: "minmax(150px,1.6fr)",
      of: (k) => k.title,
      cell: (k) =>
        el("span", {}, k.only ? el("span", { class: "tag" }, "only here") : null, cut(k.title, 60)),
    },
    {
      title: "nodes",
      width: "minmax(80px,0.7fr)",
      of: (k) => k.told.nodes.length,
      cell: (k) => k.short,
      right: false,
    },
    {
      title: "when and how long",
      width: "minmax(170px,2fr)",
      note: "In the order of the run: a waterfall; sorted: bars from the left",
      of: (k) => k.told.predicted_us,
      cell: (k) => timeBar(k, table.by === null || table.by === 0, most, longest),
      right: false,
    },
    {
      title: "predicted",
      width: "96px",
      right: true,
      of: (k) => k.told.predicted_us,
      cell: (k) => microseconds(k.told.predicted_us),
    },
    ...(timed
      ? [
          {
            title: "measured",
            width: "96px",
            right: true,
            of: (k) => k.told.measured_us,
            cell: (k) => microseconds(k.told.measured_us),
          },
        ]
      : []),
    {
      title: "moved",
      width: "92px",
      right: true,
      of: (k) => k.told.bytes_read + k.told.bytes_written,
      cell: (k) => bytes(k.told.bytes_read + k.told.bytes_written),
    },
    {
      title: "bound by",
      width: "104px",
      of: (k) => k.told.bound_by,
      cell: (k) =>
        el("span", {}, el("i", { class: `swatch bound-${k.told.bound_by}` }), k.told.bound_by),
    },
    {
      title: "lines",
      width: "minmax(110px,1fr)",
      of: (k) => places(k.told.sources),
      cell: (k) => places(k.told.sources),
    },
  ];
  const table = new LongTable(host, "Kernels", columns, {
    look: (kernel, row, event) => on.hover(kernel, event),
    open: on.pin,
  });
  return table;
}

// A bar as wide as the predicted time, its 90 % interval as a line, the measured time as a mark.
function timeBar(kernel, waterfall, most, longest) {
  const k = kernel.told,
    scale = waterfall ? most : longest;
  const part = (us) => `${Math.min(100, (100 * us) / scale)}%`;
  const start = waterfall ? kernel.start : 0;
  return el(
    "span",
    { class: "time" },
    el("i", {
      class: `fill bound-${k.bound_by}`,
      style: { left: part(start), width: `max(2px, ${part(k.predicted_us)})` },
    }),
    waterfall
      ? null
      : el("i", {
          class: "range",
          style: {
            left: part(k.predicted_low_us),
            width: part(Math.min(scale, k.predicted_high_us) - Math.min(scale, k.predicted_low_us)),
          },
        }),
    k.measured_us === null
      ? null
      : el("i", { class: "mark", style: { left: part(start + k.measured_us) } }),
  );
}

function pairTable(host, graph) {
  const gains = graph.pairs.map((p) => Math.abs(p.told.predicted_gain_us)).sort((a, b) => a - b);
  const scale = gains.length ? Math.max(gains[Math.floor(0.98 * (gains.length - 1))], 1e-6) : 1;
  const columns = [
    {
      title: "outcome",
      width: "104px",
      of: (p) => p.state,
      cell: (p) =>
        el(
          "span",
          { class: `state state-${p.state}` },
          p.state === "apart" ? "no gain" : p.state,
          p.differs ? " ≠" : "",
        ),
    },
    {
      title: "a",
      width: "minmax(80px,1fr)",
      of: (p) => p.told.a,
      cell: (p) => few(p.told.a_nodes, 3, "+"),
    },
    {
      title: "b",
      width: "minmax(80px,1fr)",
      of: (p) => p.told.b,
      cell: (p) => few(p.told.b_nodes, 3, "+"),
    },
    {
      title: "score",
      width: "minmax(96px,0.8fr)",
      note: `Inductor's: ${graph.told.score_parts.join(" / ")}`,
      of: (p) => p.told.inductor_score,
      cell: (p) => (p.told.inductor_score || ["–"]).join("/"),
    },
    {
      title: "gain, µs",
      width: "76px",
      right: true,
      note: "Predicted",
      of: (p) => p.told.predicted_gain_us,
      cell: (p) => number(p.told.predicted_gain_us),
    },
    {
      title: "90 % interval",
      width: "minmax(190px,1.5fr)",
      of: (p) => p.told.predicted_gain_low_us,
      cell: (p) => gainBar(p.told, scale),
      right: false,
    },
    {
      title: "legal",
      width: "58px",
      of: (p) => p.told.legal,
      cell: (p) => (p.told.legal ? "yes" : "no"),
    },
    {
      title: "taken",
      width: "60px",
      of: (p) => p.told.taken,
      cell: (p) => (p.told.taken ? "yes" : "no"),
    },
    {
      title: "reason",
      width: "minmax(120px,0.9fr)",
      of: (p) => p.told.reason,
      cell: (p) => p.told.reason,
    },
    {
      title: "detail",
      width: "minmax(150px,1.8fr)",
      of: (p) => p.told.detail,
      cell: (p) => cut(p.told.detail, 120),
    },
  ];
  return new LongTable(host, "Possible fusions", columns, {
    look(pair, row, event) {
      const nodes = new Set(pair ? pair.nodes : []);
      light(
        pair
          ? graph.sides.flatMap((s) =>
              s.name === "default" || graph.sameNodes
                ? s.kernels.filter((k) => k.told.nodes.some((n) => nodes.has(n)))
                : [],
            )
          : [],
      );
      showTip(pair ? pairStory(pair) : null, event);
    },
    open(pair) {
      go(graph.sides[0].kernels[graph.sides[0].of.get(pair.nodes[0])]);
    },
  });
}

// The gain and its interval around zero; the line breaks off at the edge where it is wider.
function gainBar(f, scale) {
  const at = (us) => 50 + 50 * Math.max(-1, Math.min(1, us / (1.6 * scale)));
  const [low, mid, high] = [
    f.predicted_gain_low_us,
    f.predicted_gain_us,
    f.predicted_gain_high_us,
  ].map(at);
  return el(
    "span",
    {
      class: "gain",
      title: `${number(f.predicted_gain_low_us)} to ${number(f.predicted_gain_high_us)} µs`,
    },
    el(
      "span",
      { class: "numbers" },
      `${number(f.predicted_gain_low_us)} to ${number(f.predicted_gain_high_us)}`,
    ),
    el(
      "span",
      { class: "axis" },
      el("i", { class: "range", style: { left: `${low}%`, width: `${high - low}%` } }),
      el("i", { class: "zero" }),
      el("i", {
        class: `dot ${f.predicted_gain_us >= 0 ? "good" : "bad"}`,
        style: { left: `${mid}%` },
      }),
    ),
  );
}

function drawLegend(graph) {
  const kinds = new Set(graph.sides.flatMap((s) => s.kernels.map((k) => k.told.bound_by)));
  const name = {
    memory: "bound by memory",
    arithmetic: "bound by arithmetic",
    launch: "bound by launch",
    library: "library call",
    nothing: "runs nothing",
  };
  const marks = graph.identical
    ? []
    : graph.sides.map((s) =>
        el(
          "li",
          {},
          el("i", { class: `swatch frame only-${s.name}` }),
          `only in ${s.name === "chosen" ? "the chosen plan" : "Inductor's own plan"}`,
        ),
      );
  byId("legend").replaceChildren(
    ...Object.keys(name)
      .filter((k) => kinds.has(k))
      .map((k) => el("li", {}, el("i", { class: `swatch bound-${k}` }), name[k])),
    ...marks,
    el("li", {}, "lines: data, thicker for more bytes; dashed: order only"),
    el("li", {}, "bar in a box: its predicted time"),
  );
}
