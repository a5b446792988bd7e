// What is told of one kernel or one fusion: in short beside the pointer, at length where it is pinned.

const told = (...rows) =>
  el(
    "dl",
    {},
    rows
      .filter((row) => row !== null)
      .flatMap(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]),
  );

const reasonOf = (fusion) =>
  fusion.reason ? `${fusion.reason}${fusion.detail ? `: ${fusion.detail}` : ""}` : "taken";

// Without a place to break, so that it stays in one line.
const interval = (us, low, high) =>
  `${microseconds(us)} (${number(low)} to ${number(high)})`.replace(/ /g, "\u00a0");

function kernelStory(graph, kernel, long) {
  const k = kernel.told,
    most = long ? 400 : 6;
  const nodes = kernel.members.slice(0, most);
  const parts = [
    ["launch", k.launch_us],
    ["memory", k.memory_us],
    ["arithmetic", k.arithmetic_us],
  ];
  const library = k.bound_by === "library";
  const about = [
    el("h4", {}, kernel.title),
    el("p", { class: "quiet" }, whose(graph, kernel)),
    told(
      [
        "predicted",
        `${interval(k.predicted_us, k.predicted_low_us, k.predicted_high_us)}, ${k.predicted_by}`,
      ],
      k.around_us > 0 ? ["around it", microseconds(k.around_us)] : null,
      k.measured_us !== null
        ? ["measured", microseconds(k.measured_us)]
        : k.not_measured
          ? ["not measured", k.not_measured]
          : null,
      ["bound by", k.bound_by === "nothing" ? "nothing: no code runs" : k.bound_by],
      library || kernel.idle ? null : ["roofline", partBars(parts)],
      ["moves", `${bytes(k.bytes_read)} read, ${bytes(k.bytes_written)} written`],
      k.kernel ? ["code", el("code", {}, long ? k.kernel : cut(k.kernel, 60))] : null,
      k.sources.length
        ? ["lines", long ? el("code", {}, k.sources.join("\n")) : cut(places(k.sources), 90)]
        : null,
    ),
    el("h5", {}, `${k.nodes.length} ${k.nodes.length === 1 ? "node" : "nodes"}`),
    el(
      "ul",
      { class: "nodes" },
      nodes.map((node) =>
        el(
          "li",
          {},
          el("b", {}, node.name),
          ` ${node.kind} `,
          node.loops
            .map((l) => l.join("×"))
            .filter((l) => l)
            .join(" | "),
          " ",
          el(
            "span",
            { class: "quiet" },
            few(node.operators.map(operator), long ? 20 : 4),
            " ",
            places(node.sources),
            long && node.modules.length ? ` in ${node.modules.join(", ")}` : "",
          ),
        ),
      ),
    ),
    nodes.length < kernel.members.length
      ? el("p", { class: "quiet" }, `and ${kernel.members.length - nodes.length} more`)
      : null,
    ...reasonsAround(graph, kernel, long ? 12 : 3),
  ];
  if (!long) return [...about, ...shortFeatures(k)];
  const filled = (parts) =>
    el(
      "div",
      {},
      parts.filter((part) => part),
    );
  return [filled(about), filled([...flowTable(graph, kernel), ...featureTable(k)])];
}

function whose(graph, kernel) {
  if (graph.identical) return "";
  const other = kernel.side === "chosen" ? "Inductor's own" : "the chosen plan";
  if (!kernel.only) return "In both plans.";
  if (!kernel.twins.length) return `Only in this plan; ${other} has no kernel of these nodes.`;
  const where = kernel.twins.map((twin) => twin.told.nodes.join("+"));
  return `Only in this plan; ${other} has its nodes in ${cut(where.join(" and "), 160)}.`;
}

function partBars(parts) {
  const most = Math.max(...parts.map(([, us]) => us), 1e-9);
  return el(
    "span",
    { class: "parts" },
    parts.map(([name, us]) =>
      el(
        "span",
        {},
        el("i", {
          class: `fill bound-${name}`,
          style: { width: `${Math.max(2, (60 * us) / most)}px` },
        }),
        ` ${name} ${microseconds(us)}`,
      ),
    ),
  );
}

// Why the kernel is not larger: its fusions that the plan does not have, those that would gain most first.
function reasonsAround(graph, kernel, most) {
  const inside = new Set(kernel.told.nodes);
  const seen = new Map();
  for (const pair of graph.pairsOf(kernel)) {
    if (pair.nodes.every((node) => inside.has(node))) continue;
    const others = pair.nodes.filter((node) => !inside.has(node)).join("+");
    const before = seen.get(others);
    if (!before || before.told.predicted_gain_us < pair.told.predicted_gain_us)
      seen.set(others, pair);
  }
  const pairs = [...seen].sort((a, b) => b[1].told.predicted_gain_us - a[1].told.predicted_gain_us);
  if (!pairs.length) return [];
  return [
    el("h5", {}, "Why it is not larger"),
    el(
      "ul",
      { class: "reasons" },
      pairs
        .slice(0, most)
        .map(([others, pair]) =>
          el(
            "li",
            {},
            el("b", {}, `+ ${cut(others, 40)}`),
            ` ${microseconds(pair.told.predicted_gain_us)} gain, `,
            el(
              "span",
              { class: `state state-${pair.state}` },
              pair.told.taken ? "taken by Inductor" : pair.told.reason,
            ),
            pair.differs
              ? ` (${pair.told.together_chosen ? "together" : "apart"} in the chosen plan) `
              : " ",
            el("span", { class: "quiet" }, cut(pair.told.detail, 90)),
          ),
        ),
    ),
    pairs.length > most ? el("p", { class: "quiet" }, `and ${pairs.length - most} more`) : null,
  ];
}

// The device's own are the same for all kernels, and zeros say nothing.
const telling = (k) =>
  Object.entries(k.features).filter(([name, value]) => value && !/^(device_|is_)/.test(name));

function shortFeatures(k) {
  const wanted = [
    "iterations",
    "passes",
    "reread",
    "stores_removed",
    "reads_removed",
    "transcendental",
    "live_values",
    "inputs",
    "outputs",
  ];
  const found = wanted.filter((name) => k.features[name]);
  return found.length
    ? [
        el("h5", {}, "Features"),
        el(
          "p",
          { class: "features" },
          found.map((name) => `${name} ${plain(k.features[name])}`).join(" · "),
        ),
      ]
    : [];
}

function featureTable(k) {
  const rows = telling(k).map(([name, value]) => {
    const [unit, meaning] = WORDS.features[name] || ["", ""];
    return [
      name,
      plain(value),
      unit.replace(/^log2 /, "").replace(/^(count|flag|share)$/, ""),
      meaning,
    ];
  });
  return rows.length
    ? [
        el("h5", {}, "Features that are not 0"),
        smallTable(["feature", "value", "unit", "meaning"], rows, "Features"),
      ]
    : [];
}

function flowTable(graph, kernel) {
  const side = graph.sides.find((s) => s.name === kernel.side);
  const row = (way, flow, at) => [
    way,
    side.kernels[at].title,
    few([...flow.buffers.keys()], 6),
    flow.weak ? "order only" : bytes(flow.bytes),
  ];
  const rows = [
    ...kernel.from.map((f) => row("from", f, f.from)),
    ...kernel.into.map((f) => row("to", f, f.to)),
  ];
  return rows.length
    ? [el("h5", {}, "Data flow"), smallTable(["", "kernel", "buffers", "size"], rows, "Data flow")]
    : [];
}

function pairStory(pair) {
  const f = pair.told;
  const round = f.rounds.length === 1 ? `round ${f.rounds[0]}` : `rounds ${f.rounds.join(", ")}`;
  return [
    el("h4", {}, `${cut(f.a, 60)} + ${cut(f.b, 60)}`),
    told(
      ["outcome", el("span", { class: `state state-${pair.state}` }, STATES[pair.state])],
      f.reason ? ["reason", el("code", {}, f.reason), ` ${WORDS.reasons[f.reason] || ""}`] : null,
      f.detail ? ["detail", f.detail] : null,
      f.blocked_by.length ? ["because of", f.blocked_by.join(", ")] : null,
      [
        "predicted gain",
        interval(f.predicted_gain_us, f.predicted_gain_low_us, f.predicted_gain_high_us),
      ],
      [
        "Inductor's score",
        f.inductor_score
          ? f.inductor_score
              .map((part, at) => `${shownGraph().told.score_parts[at]} ${plain(part)}`)
              .join(" · ")
          : "none",
      ],
      [
        "asked in",
        `${round}${f.part ? ", as part of a larger question" : ""}; ${f.vertical ? "one side needs the other" : "neither side needs the other"}`,
      ],
      pair.differs
        ? [
            "plans differ",
            f.together_chosen
              ? "together in the chosen plan alone"
              : "together in Inductor's own plan alone",
          ]
        : null,
      ["nodes", `${few(f.a_nodes, 20)} with ${few(f.b_nodes, 20)}`],
    ),
  ];
}

const tip = byId("tip");

// Beside the pointer, or beside what has the focus.
function showTip(content, event) {
  if (!content) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(...content.filter((part) => part));
  tip.hidden = false;
  const target = event.target.closest("g.kernel, .row, canvas, circle") || event.target;
  const box = target.getBoundingClientRect();
  // Not over the row of a kernel, where its like in the other plan lies.
  const pointer = event.type.startsWith("pointer") && !target.matches("g.kernel");
  const at = pointer
    ? { left: event.clientX, right: event.clientX, top: event.clientY, bottom: event.clientY }
    : box;
  const wide = tip.offsetWidth,
    high = tip.offsetHeight,
    gap = 12;
  const inside = (value, most) => Math.max(8, Math.min(value, most - 8));
  let x = at.left + (pointer ? gap : 24),
    y = at.bottom + gap;
  if (y + high > window.innerHeight - 8) y = at.top - high - gap;
  if (y < 8) {
    // Neither below nor above: beside.
    y = inside(at.top - high / 3, window.innerHeight - high);
    x = at.right + gap + wide < window.innerWidth - 8 ? at.right + gap : at.left - wide - gap;
  }
  tip.style.left = `${inside(x, window.innerWidth - wide)}px`;
  tip.style.top = `${y}px`;
}
