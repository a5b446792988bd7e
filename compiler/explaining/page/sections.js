// The parts of the page that stand still: summary, candidates, one fusion.

function drawSummary(graph) {
  const { told, sides, pairs } = graph;
  const own = sides[0],
    chosen = sides[sides.length - 1];
  const many = (side) => side.kernels.filter((kernel) => !kernel.idle).length;
  const count = (state) => pairs.filter((pair) => pair.state === state).length;
  const card = (title, value, note) =>
    el(
      "div",
      { class: "card" },
      el("div", { class: "quiet" }, title),
      el("div", { class: "value" }, value),
      el("div", { class: "quiet" }, note || ""),
    );
  const gain = own.plan.predicted_us - chosen.plan.predicted_us;
  const cards = [
    card(
      "nodes",
      group(chosen.kernels.reduce((sum, k) => sum + k.told.nodes.length, 0)),
      `${told.rounds.length} rounds of fusion`,
    ),
    card(
      "kernels and library calls",
      graph.identical ? String(many(own)) : `${many(own)} → ${many(chosen)}`,
      graph.identical
        ? "Inductor's own plan"
        : `${own.kernels.filter((k) => k.only).length} and ${chosen.kernels.filter((k) => k.only).length} only in one plan`,
    ),
    card(
      "predicted",
      graph.identical
        ? microseconds(own.plan.predicted_us)
        : `${microseconds(own.plan.predicted_us)} → ${microseconds(chosen.plan.predicted_us)}`,
      graph.identical
        ? `90 %: ${number(own.plan.predicted_low_us)} to ${number(own.plan.predicted_high_us)}, by ${told.model}`
        : `${microseconds(Math.abs(gain))} (${((100 * Math.abs(gain)) / Math.max(own.plan.predicted_us, 1e-9)).toFixed(1)} %) ${gain >= 0 ? "less" : "more"}, by ${told.model}`,
    ),
  ];
  if (own.plan.measured_us !== null) {
    cards.push(
      card(
        "measured kernel by kernel",
        graph.identical || chosen.plan.measured_us === null
          ? microseconds(own.plan.measured_us)
          : `${microseconds(own.plan.measured_us)} → ${microseconds(chosen.plan.measured_us)}`,
        "warm caches; not the whole program's time",
      ),
    );
  }
  cards.push(
    card(
      "possible fusions",
      group(pairs.length),
      [
        `${count("taken")} taken, ${count("missed")} missed`,
        count("rule") ? `, ${count("rule")} forbidden by rules` : "",
        `, ${count("refused")} refused`,
      ].join(""),
    ),
  );
  byId("summary").replaceChildren(el("div", { class: "cards" }, cards), ...notices(graph));
}

function notices(graph) {
  const { told } = graph,
    found = [];
  const origin = {
    inductor: "Inductor's own",
    rules: "Inductor's own as rules want it",
    store: "the stored one",
    "plan file": "the one of the plan file",
    predicted: "the one that is predicted to be best (nothing was stored for this graph)",
  };
  const others = told.candidates.filter((c) => !c.default).length;
  found.push(
    !graph.identical
      ? `The chosen schedule is ${origin[told.plan.origin] || told.plan.origin}: ${told.plan.choices}.`
      : others
        ? `Of ${others + 1} candidates Inductor's own schedule was chosen, so there is one plan to show.`
        : "Inductor's own schedule is explained; nothing else was considered.",
  );
  if (!graph.sameNodes)
    found.push(
      "Its lowering makes other nodes than Inductor's own, so kernels are compared by what they compute, and fusions are told of Inductor's own nodes.",
    );
  if (told.not_measured) found.push(`Not measured: ${told.not_measured}.`);
  const rules = told.rules;
  if (rules) {
    for (const rule of rules.rules)
      found.push(
        `${rule.rule.replace(/^r/, "R")}: ${rule.matched ? `${rule.nodes} nodes, ${rule.pairs} pairs` : "matches nothing"}.`,
      );
    for (const text of rules.conflicts) found.push(`Rules in conflict: ${text}.`);
    for (const text of rules.unkept) found.push(`Rule not kept: ${text}.`);
  }
  return [
    el(
      "ul",
      { class: "notes" },
      found.map((text) => el("li", {}, text)),
    ),
  ];
}

function drawCandidates(graph, on) {
  const { told } = graph,
    host = byId("candidates");
  const kind = (c) => (c.chosen ? "chosen" : c.default ? "default" : "plain");
  const measured = told.candidates.filter((c) => c.measured_us && c.predicted_us);
  const charts = [];
  if (measured.length) {
    charts.push(
      el(
        "figure",
        {},
        el(
          "figcaption",
          {},
          `${measured.length} candidates, whole graph`,
          keyOf(
            { default: "Inductor's own", chosen: "chosen", plain: "others" },
            new Set(measured.map(kind)),
          ),
        ),
        scatter(
          measured.map((c) => ({
            x: c.predicted_us,
            y: c.measured_us,
            low: c.predicted_low_us,
            high: c.predicted_high_us,
            name: c.choices,
            kind: kind(c),
            story: candidateStory(c),
          })),
          "Candidates, predicted against measured",
          on,
        ),
      ),
    );
  }
  const timed = new Map();
  for (const side of graph.sides) {
    for (const k of side.kernels) {
      if (k.told.measured_us && k.told.predicted_us && (k.only || side.name === "default"))
        timed.set(k, side);
    }
  }
  if (timed.size) {
    charts.push(
      el(
        "figure",
        {},
        el(
          "figcaption",
          {},
          `${timed.size} kernels and library calls`,
          graph.identical
            ? ""
            : keyOf({
                plain: "in both plans",
                "only-default": "only in Inductor's own",
                "only-chosen": "only in the chosen",
              }),
        ),
        scatter(
          [...timed.keys()].map((k) => ({
            x: k.told.predicted_us,
            y: k.told.measured_us,
            low: k.told.predicted_low_us,
            high: k.told.predicted_high_us,
            name: k.title,
            kind: k.only ? `plain only-${k.side}` : "plain",
            kernel: k,
          })),
          "Kernels, predicted against measured",
          on,
        ),
      ),
    );
  }
  const rows = told.candidates.map((c) => [
    el(
      "span",
      {},
      c.chosen ? el("span", { class: "tag" }, "chosen") : "",
      c.default ? el("span", { class: "tag" }, "default") : "",
      ` ${cut(c.choices, 90)}`,
    ),
    c.own_groups.length ? cut(c.own_groups.map((names) => few(names, 4, "+")).join(", "), 90) : "",
    c.origin,
    String(c.groups),
    c.predicted_us === null
      ? "–"
      : interval(c.predicted_us, c.predicted_low_us, c.predicted_high_us),
    microseconds(c.measured_us),
    c.reason || c.status,
  ]);
  host.replaceChildren(
    el("h2", { id: "candidates-title" }, "Candidates: predicted against measured"),
    charts.length ? el("div", { class: "charts" }, charts) : "",
    charts.length
      ? el(
          "p",
          { class: "hint" },
          "On the line the prediction is right; above it takes longer than predicted. Whiskers are the 90 % intervals.",
        )
      : el(
          "p",
          { class: "hint" },
          "Nothing is measured: give --measure to time kernels and candidates, or compile once with the backend; what was measured then is shown here.",
        ),
    rows.length
      ? smallTable(
          [
            "candidate",
            "kernels that Inductor's plan has not",
            "from",
            "kernels",
            "predicted (90 %)",
            "measured",
            "outcome",
          ],
          rows,
          "Candidates",
        )
      : "",
  );
}

const keyOf = (names, there) =>
  Object.entries(names)
    .filter(([kind]) => !there || there.has(kind))
    .map(([kind, text]) =>
      el("span", { class: "key" }, el("i", { class: `swatch ${kind}` }), text),
    );

const candidateStory = (c) => [
  el("h4", {}, c.choices),
  told(
    ["from", `${c.origin}, ${c.groups} kernels`],
    ["predicted", interval(c.predicted_us, c.predicted_low_us, c.predicted_high_us)],
    [
      "measured",
      `${microseconds(c.measured_us)}${c.rounds ? `, ${c.rounds} rounds` : ""}${c.spread === null ? "" : `, spread ${(100 * c.spread).toFixed(1)} %`}`,
    ],
    ["outcome", c.reason || c.status],
  ),
];

function drawWhy(graph) {
  const why = graph.told.why,
    host = byId("why");
  host.hidden = !why;
  if (!why) return;
  const sides = [...why.before.map((s) => ["before", s]), ...why.after.map((s) => ["after", s])];
  const strongest = new Map();
  for (const [, side] of sides) {
    for (const c of side.attribution.contributions)
      strongest.set(c.feature, Math.max(strongest.get(c.feature) || 0, Math.abs(c.shap)));
  }
  const features = [...strongest]
    .sort((a, b) => b[1] - a[1])
    .slice(0, 10)
    .map(([name]) => name);
  const cell = (side, name) => {
    const c = side.attribution.contributions.find((one) => one.feature === name);
    return c ? `${plain(c.value)}: ×${c.factor.toFixed(2)}` : "–";
  };
  // Where the trees are too uncertain the roofline predicts, whatever they say.
  const byTrees = sides.some(
    ([, s]) => s.attribution.contributions.length && s.predicted_by !== "roofline",
  );
  host.replaceChildren(
    el("h2", { id: "why-title" }, `${why.a} with ${why.b}`),
    told(
      [
        "with it " + why.change,
        why.legal
          ? `gains ${interval(why.predicted_gain_us, why.predicted_gain_low_us, why.predicted_gain_high_us)}; the graph goes from ${microseconds(why.predicted_us)} to ${microseconds(why.predicted_changed_us)}`
          : `cannot be built: ${why.reason} ${why.detail}`,
      ],
      why.fusion ? ["Inductor", reasonOf(why.fusion)] : null,
      why.measured_us !== null
        ? [
            "measured",
            `${microseconds(why.measured_us)} to ${microseconds(why.measured_changed_us)}`,
          ]
        : why.not_measured
          ? ["not measured", why.not_measured]
          : null,
    ),
    smallTable(
      ["", "group", "predicted (90 %)", "by", "launch", "memory", "arithmetic", "around"],
      sides.map(([when, s]) => [
        when,
        cut(s.nodes.join("+"), 60),
        interval(s.predicted_us, s.predicted_low_us, s.predicted_high_us),
        s.predicted_by,
        ...["launch_us", "memory_us", "arithmetic_us"].map((part) =>
          microseconds(s.attribution[part]),
        ),
        microseconds(s.around_us),
      ]),
      "Groups before and after",
    ),
    features.length
      ? smallTable(
          ["feature", ...sides.map(([when, s]) => `${when} ${cut(s.nodes.join("+"), 24)}`)],
          features.map((name) => [name, ...sides.map(([, s]) => cell(s, name))]),
          "What the trees say, as factors on the time",
        )
      : "",
    byTrees
      ? ""
      : el(
          "p",
          { class: "hint" },
          "The roofline predicts: the greater of memory and arithmetic, plus the launch." +
            (features.length ? " What the trees say is too uncertain to count." : ""),
        ),
  );
}
