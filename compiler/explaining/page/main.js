// Ties the parts together: which graph is shown, what is searched for, what is looked at and pinned.

const shown = {
  graph: null,
  panes: [],
  strips: [],
  looked: null,
  pinned: null,
  around: null,
  side: "",
  kernels: null,
  pairs: null,
  scale: 1,
};
const shownGraph = () => shown.graph;
const graphs = REPORT.graphs.map(() => null);

const on = {
  hover(kernel, event) {
    if (shown.looked === kernel && !kernel) return;
    shown.looked = kernel;
    light(kernel ? [kernel, ...kernel.twins] : []);
    showTip(kernel ? kernelStory(shown.graph, kernel, false) : null, event);
  },
  looked: () => shown.looked || shown.pinned,
  pin(kernel) {
    pin(kernel);
  },
  zoom(factor) {
    zoom(shown.scale * factor);
  },
  scrolled(pane) {
    for (const other of shown.panes) {
      if (other === pane || pane.expected === pane.scroll.scrollTop) continue;
      other.scroll.scrollTop = pane.scroll.scrollTop;
      other.expected = other.scroll.scrollTop;
    }
    pane.expected = null;
  },
  look(point, event) {
    if (point && point.kernel) on.hover(point.kernel, event);
    else {
      light([]);
      showTip(point ? point.story : null, event);
    }
  },
};

function light(kernels) {
  const lit = new Set(kernels);
  if (shown.pinned) for (const kernel of [shown.pinned, ...shown.pinned.twins]) lit.add(kernel);
  for (const part of [...shown.panes, ...shown.strips]) part.mark(lit, part.dim);
}

function pin(kernel) {
  showTip(null);
  shown.pinned = shown.pinned === kernel ? null : kernel;
  const host = byId("pinned");
  host.hidden = !shown.pinned;
  if (shown.pinned) {
    const many = shown.graph.pairsOf(kernel).length;
    host.replaceChildren(
      el(
        "div",
        { class: "bar" },
        el("h3", {}, `${CALLED[kernel.side]}: ${kernel.short}`),
        el(
          "div",
          { class: "buttons" },
          many
            ? el(
                "button",
                {
                  type: "button",
                  id: "around",
                  onclick: () => {
                    shown.around = kernel;
                    filter();
                    byId("fusions").scrollIntoView({ block: "start" });
                  },
                },
                `its ${many} fusions`,
              )
            : null,
          ...kernel.twins.map((twin) =>
            el(
              "button",
              { type: "button", onclick: () => go(twin) },
              kernel.only ? `go to ${twin.short}` : "the same on the other side",
            ),
          ),
          el("button", { type: "button", "aria-label": "Unpin", onclick: () => pin(kernel) }, "✕"),
        ),
      ),
      el("div", { class: "story" }, kernelStory(shown.graph, kernel, true)),
    );
  }
  light([]);
}

function go(kernel) {
  const pane = shown.panes.find((p) => p.side.name === kernel.side);
  pane.focus(kernel);
}

function zoom(scale) {
  for (const pane of shown.panes) pane.zoomTo(scale);
  shown.scale = shown.panes[0].scale;
}

// Whole graph in height and width, or in width alone as far as it can be read.
function fit(whole) {
  const widths = shown.panes.map((p) => (p.scroll.clientWidth - 4) / p.side.width);
  const heights = shown.panes.map((p) => (p.scroll.clientHeight - 4) / p.side.height);
  zoom(
    whole ? Math.min(1, ...widths, ...heights) : Math.min(1, Math.max(0.62, Math.min(...widths))),
  );
  for (const pane of shown.panes) pane.centre();
}

function step(way) {
  const all = shown.panes
    .flatMap((p) => p.side.kernels.filter((k) => k.only))
    .sort((a, b) => a.y - b.y || (a.side < b.side ? 1 : -1) || a.x - b.x);
  if (!all.length) return;
  const now = all.indexOf(on.looked());
  const last = shown.stepped === undefined ? (way > 0 ? -1 : 0) : shown.stepped;
  shown.stepped = ((now >= 0 ? now : last) + way + all.length) % all.length;
  go(all[shown.stepped]);
}

function tokens() {
  return byId("query")
    .value.toLowerCase()
    .split(/\s+/)
    .filter((token) => token);
}

// A whole name finds itself alone, anything else all that it is part of: `op3` is not `op31`.
function finder(graph, words) {
  if (!graph.exact) {
    graph.exact = new Set();
    for (const side of graph.sides) {
      for (const kernel of side.kernels) {
        for (const node of kernel.members)
          for (const name of [node.name, ...node.reads, ...node.writes])
            graph.exact.add(name.toLowerCase());
      }
    }
  }
  const wanted = words.map((word) =>
    graph.exact.has(word) ? [`\n${word}\n`, true] : [word, false],
  );
  return (text) => wanted.every(([word, whole]) => (whole ? `\n${text}\n` : text).includes(word));
}

function filter() {
  const { graph } = shown,
    words = tokens(),
    differing = byId("differing").checked;
  const hit = finder(graph, words);
  const searching = words.length > 0 || differing;
  const found = new Set();
  let all = 0;
  for (const side of graph.sides) {
    for (const kernel of side.kernels) {
      all += 1;
      if ((!differing || kernel.only) && (!words.length || hit(textOfKernel(kernel))))
        found.add(kernel);
    }
  }
  for (const part of [...shown.panes, ...shown.strips])
    part.mark(part.lit, searching ? found : null);
  const listed = graph.sides.find((s) => s.name === shown.side) || graph.sides[0];
  shown.kernels.show(
    listed.run.map((at) => listed.kernels[at]).filter((k) => !k.idle && found.has(k)),
  );
  const state = byId("state").value,
    reason = byId("reason").value;
  const near = shown.around ? new Set(graph.pairsOf(shown.around)) : null;
  const pairs = graph.pairs.filter(
    (pair) =>
      (!near || near.has(pair)) &&
      (!state || pair.state === state || (state === "differs" && pair.differs)) &&
      (!reason || pair.told.reason === reason) &&
      (!differing || pair.differs) &&
      (!words.length || hit(graph.textOfPair(pair))),
  );
  shown.pairs.show(pairs);
  byId("found").textContent =
    searching || state || reason || near
      ? `${found.size} of ${all} kernels, ${group(pairs.length)} of ${group(graph.pairs.length)} fusions${near ? ` (around ${shown.around.short})` : ""}`
      : "";
  byId("clear").hidden = !(searching || state || reason || near);
}

function clear() {
  byId("query").value = "";
  byId("differing").checked = false;
  byId("state").value = byId("reason").value = "";
  shown.around = null;
  filter();
}

function choices(graph) {
  const count = (key) =>
    graph.pairs.reduce((sum, pair) => {
      const k = key(pair);
      sum.set(k, (sum.get(k) || 0) + 1);
      return sum;
    }, new Map());
  const states = count((pair) => pair.state),
    reasons = count((pair) => pair.told.reason);
  const differ = graph.pairs.filter((pair) => pair.differs).length;
  const option = (value, text) => el("option", { value }, text);
  byId("state").replaceChildren(
    option("", "any outcome"),
    ...Object.keys(STATES)
      .filter((s) => states.has(s))
      .map((s) => option(s, `${STATES[s]} (${states.get(s)})`)),
    ...(differ ? [option("differs", `other in the two plans (${differ})`)] : []),
  );
  byId("reason").replaceChildren(
    option("", "any reason"),
    ...[...reasons]
      .filter(([r]) => r)
      .sort((a, b) => b[1] - a[1])
      .map(([r, n]) => option(r, `${r} (${n})`)),
  );
}

function showGraph(at) {
  graphs[at] = graphs[at] || makeGraph(REPORT.graphs[at]);
  const graph = graphs[at];
  if (!graph.placed) {
    layOut(graph);
    graph.placed = true;
  }
  Object.assign(shown, { graph, looked: null, pinned: null, around: null, stepped: undefined });
  showTip(null);
  byId("pinned").hidden = true;
  [...byId("graphs").children].forEach((tab, t) => {
    tab.setAttribute("aria-selected", t === at);
    tab.setAttribute("tabindex", t === at ? 0 : -1);
  });
  drawSummary(graph);
  const longest = Math.max(
    ...graph.sides.flatMap((s) => s.kernels.map((k) => k.told.predicted_us)),
    0,
  );
  shown.panes = graph.sides.map((side) => new Pane(side, longest, on));
  byId("panes").replaceChildren(...shown.panes.map((pane) => pane.host));
  const most = Math.max(...graph.sides.map((s) => s.total), 1e-9);
  shown.strips = graph.sides.map((side) => new Strip(side, most, on));
  byId("strips").replaceChildren(...shown.strips.map((strip) => strip.host));
  for (const id of ["previous", "next", "stepping"]) byId(id).hidden = graph.identical;
  byId("differing").parentElement.hidden = graph.identical;
  byId("differing").checked = false;
  shown.side = graph.sides[graph.sides.length - 1].name;
  byId("sides").replaceChildren(
    ...(graph.identical
      ? []
      : graph.sides.map((side) =>
          el(
            "button",
            {
              type: "button",
              role: "radio",
              "aria-checked": String(side.name === shown.side),
              "data-side": side.name,
              onclick: () => ofSide(side.name),
            },
            CALLED[side.name],
          ),
        )),
  );
  shown.kernels = kernelTable(byId("kernels"), graph, most, on);
  shown.pairs = pairTable(byId("pairs"), graph);
  drawLegend(graph);
  drawCandidates(graph, on);
  drawWhy(graph);
  drawLowering(graph);
  drawAbout(graph);
  choices(graph);
  filter();
  fit(false);
}

function ofSide(name) {
  shown.side = name;
  for (const button of byId("sides").children)
    button.setAttribute("aria-checked", String(button.dataset.side === name));
  filter();
}

const wholeGraphs = (kind) => REPORT.graphs.filter((g) => g.kind === kind && !g.name).length;

function start() {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches
    ? "dark"
    : "light";
  const repaint = () => {
    for (const part of [...shown.panes, ...shown.strips]) part.later();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.matches ? "dark" : "light";
    repaint();
  });
  byId("theme").onclick = () => {
    const { dataset } = document.documentElement;
    dataset.theme = dataset.theme === "dark" ? "light" : "dark";
    repaint();
  };
  if (!REPORT.graphs.length) {
    for (const part of document.querySelectorAll("form.find, main > section"))
      part.hidden = part.id !== "summary";
    byId("summary").replaceChildren(
      el("p", { class: "notice" }, "The program has no graph that computes anything."),
    );
    return;
  }
  byId("graphs").replaceChildren(
    ...REPORT.graphs.map((graph, at) =>
      el(
        "button",
        { type: "button", role: "tab", onclick: () => showGraph(at) },
        graph.name || `${graph.kind}${wholeGraphs(graph.kind) > 1 ? ` ${at + 1}` : ""}`,
      ),
    ),
  );
  byId("graphs").addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    const at =
      (REPORT.graphs.indexOf(shown.graph.told) + way + REPORT.graphs.length) % REPORT.graphs.length;
    showGraph(at);
    byId("graphs").children[at].focus();
  });
  document.querySelector("form.find").addEventListener("submit", (event) => event.preventDefault());
  byId("query").addEventListener("input", once(filter));
  for (const id of ["differing", "state", "reason"]) byId(id).addEventListener("change", filter);
  byId("clear").onclick = clear;
  byId("in").onclick = () => zoom(shown.scale * 1.25);
  byId("out").onclick = () => zoom(shown.scale / 1.25);
  byId("whole").onclick = () => fit(true);
  byId("previous").onclick = () => step(-1);
  byId("next").onclick = () => step(1);
  for (const moved of ["wheel", "touchmove"])
    document.addEventListener(moved, () => showTip(null), { passive: true });
  new ResizeObserver(repaint).observe(byId("panes"));
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") {
      showTip(null);
      if (typing) clear();
      else if (shown.pinned) pin(shown.pinned);
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      byId("query").focus();
    }
    if (event.key === "n") step(1);
    if (event.key === "p") step(-1);
  });
  showGraph(0);
}

start();
document.documentElement.dataset.ready = "yes";
