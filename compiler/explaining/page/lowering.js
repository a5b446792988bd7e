// What happened before the scheduler, and under what circumstances.

function drawLowering(graph) {
  const { told } = graph;
  const changes = (r) =>
    [
      ...Object.entries(r.removed).map(([n, c]) => `−${c} ${n}`),
      ...Object.entries(r.added).map(([n, c]) => `+${c} ${n}`),
    ].join(", ");
  // A stage is told of as a whole even where nothing came of it.
  const passes = told.rewrites.filter(changes).map((r) => [
    r.stage,
    r.name || "all of it",
    `${r.nodes_before} → ${r.nodes_after}`,
    changes(r),
  ]);
  const inlined = told.inlining.filter((d) => d.outcome === "inline");
  const within = Object.entries(told.within).map(([name, count]) => `${name} (${count} operators)`);
  const place = el("div", {});
  byId("lowering").replaceChildren(
    el("h2", { id: "lowering-title" }, "Before the scheduler"),
    el(
      "details",
      {},
      el("summary", {}, `Rewrites: ${passes.length} passes and stages changed the graph`),
      passes.length
        ? smallTable(["stage", "pass", "operators", "changes"], passes, "Rewrites")
        : el("p", { class: "none" }, "Nothing was rewritten."),
    ),
    el(
      "details",
      {
        ontoggle: (event) => {
          if (event.target.open && !place.firstChild) inliningTable(place, told.inlining);
        },
      },
      el(
        "summary",
        {},
        `Inline or store: ${inlined.length} of ${told.inlining.length} values inlined, ${inlined.filter((d) => d.inlined_into.length > 1).length} of these into several consumers`,
      ),
      place,
    ),
    within.length
      ? el(
          "p",
          {},
          `Within the graph, fused by Inductor alone, each told as a graph of its own: ${within.join(", ")}`,
        )
      : "",
  );
}

function inliningTable(host, decisions) {
  const table = new LongTable(
    host,
    "Values inlined or stored",
    [
      { title: "value", width: "minmax(110px,1.2fr)", of: (d) => d.node, cell: (d) => d.node },
      {
        title: "operator",
        width: "minmax(90px,1fr)",
        of: (d) => d.operator,
        cell: (d) => operator(d.operator),
      },
      {
        title: "outcome",
        width: "80px",
        of: (d) => d.outcome,
        cell: (d) => (d.outcome === "inline" ? "inlined" : "stored"),
      },
      {
        title: "into",
        width: "minmax(120px,1.4fr)",
        of: (d) => d.inlined_into.length,
        cell: (d) => few(d.inlined_into, 4),
        right: false,
      },
      {
        title: "rule",
        width: "minmax(140px,1.8fr)",
        of: (d) => d.rule,
        cell: (d) => WORDS.rules[d.rule] || d.rule,
      },
      {
        title: "size",
        width: "90px",
        of: (d) => d.bytes,
        cell: (d) => bytes(d.bytes),
        right: true,
      },
      {
        title: "operations",
        width: "90px",
        of: (d) => d.ops,
        cell: (d) => plain(d.ops),
        right: true,
      },
    ],
    { look: () => {}, open: () => {} },
  );
  table.show(decisions);
}

function drawAbout(graph) {
  const { told } = graph;
  byId("about").replaceChildren(
    el(
      "p",
      { class: "quiet" },
      `fusewise ${REPORT.fusewise}, torch ${REPORT.torch}, ${told.device}; cost model ${told.model}; graph `,
      el("code", {}, told.key),
      ". Times in microseconds; intervals are of 90 %. A fusion's interval takes each group's at its worst.",
    ),
  );
}
