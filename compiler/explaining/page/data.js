// What is told of: the report's data, made ready for drawing. Draws nothing.

const WORDS = JSON.parse(document.getElementById("words").textContent);
const REPORT = JSON.parse(document.getElementById("data").textContent);

const CALLED = { default: "Inductor's own", chosen: "Chosen" };
const STATES = {
  taken: "taken",
  missed: "missed: legal, apart, would gain",
  apart: "legal, apart, would gain nothing",
  together: "together by way of others",
  refused: "refused",
  rule: "forbidden by a rule",
};

function microseconds(us) {
  if (us === null || us === undefined) return "–";
  if (Math.abs(us) < 10) return us.toFixed(2) + " µs";
  return (Math.abs(us) < 1000 ? us.toFixed(1) : group(Math.round(us))) + " µs";
}

const group = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");

// A time without its unit, beside others.
const number = (us) => (Math.abs(us) < 10 ? us.toFixed(2) : group(Math.round(us)));

function bytes(size) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return (unit === "B" ? size.toFixed(0) : size.toFixed(1)) + " " + unit;
    size /= 1024;
  }
  return size.toFixed(2) + " GiB";
}

function plain(value) {
  if (value === 0 || Number.isInteger(value)) return group(value);
  const rounded = Math.round(value);
  if (Math.abs(value) >= 100 || Math.abs(value - rounded) < 1e-6) return group(rounded);
  return value.toPrecision(3);
}

// `aten.add.Tensor` and `<built-in function add>` as people say it; `mine.add.default` is `mine.add`.
const operator = (name) =>
  name
    .replace(/^<built-in \w+ (.+)>$/, "$1")
    .replace(/^(?:aten|prims)\.([^.]+).*/, "$1")
    .split(".")
    .slice(0, 2)
    .join(".");

// Lines by file, without folders: `model.py:12,15`.
function places(sources) {
  const lines = new Map();
  for (const source of sources) {
    const at = source.lastIndexOf(":");
    const file = source.slice(0, at).split("/").pop();
    if (!lines.has(file)) lines.set(file, []);
    lines.get(file).push(source.slice(at + 1));
  }
  return [...lines].map(([file, numbers]) => `${file}:${numbers.join(",")}`).join(" ");
}

const few = (list, most, between = ", ") =>
  list.length <= most
    ? list.join(between)
    : list.slice(0, most).join(between) + ` … ${list.length}`;

// One plan: its kernels with the data that flows between them.
function makeSide(name, groups, nodes, edges, plan) {
  const byNode = new Map(nodes.map((node, at) => [node.name, { ...node, at }]));
  const of = new Map();
  const kernels = groups.map((told, at) => {
    for (const node of told.nodes) of.set(node, at);
    const members = told.nodes.map((node) => byNode.get(node));
    const operators = [...new Set(told.operators.map(operator))];
    return {
      side: name,
      at,
      told,
      members,
      operators,
      title: titleOf(told, operators),
      short: told.nodes.length > 1 ? `${told.nodes[0]} +${told.nodes.length - 1}` : told.nodes[0],
      idle: told.bound_by === "nothing",
      order: Math.min(...members.map((node) => node.at)),
      into: [],
      from: [],
      only: false,
      twins: [],
      fusions: null,
      text: null,
    };
  });
  const flows = new Map();
  for (const edge of edges) {
    const from = of.get(edge.producer),
      to = of.get(edge.consumer);
    if (from === undefined || to === undefined || from === to) continue;
    const key = from * kernels.length + to;
    if (!flows.has(key)) flows.set(key, { from, to, buffers: new Map(), weak: true });
    const flow = flows.get(key);
    if (!edge.weak) {
      flow.weak = false;
      flow.buffers.set(edge.buffer, edge.bytes);
    }
  }
  for (const flow of flows.values()) {
    flow.bytes = [...flow.buffers.values()].reduce((sum, size) => sum + size, 0);
    kernels[flow.from].into.push(flow);
    kernels[flow.to].from.push(flow);
  }
  const side = { name, kernels, flows: [...flows.values()], plan, of };
  inRunOrder(side);
  return side;
}

// A library call is known by its own operator, which comes last, not by what was rewritten into it.
function titleOf(told, operators) {
  if (!operators.length) return told.kernel || told.nodes.join(" ");
  return told.bound_by === "library" ? operators[operators.length - 1] : operators.join(" ");
}

// Places and start times of the kernels, each after all that it needs.
function inRunOrder(side) {
  side.run = arranged(
    side.kernels.length,
    side.kernels.map((k) => k.order),
    side.flows,
  );
  let start = 0;
  side.run.forEach((at, place) => {
    const kernel = side.kernels[at];
    kernel.place = place;
    kernel.start = start;
    start += kernel.told.predicted_us;
  });
  side.total = start;
}

// Indices so that every flow goes forward, else by `order`; a cycle is broken at its earliest.
function arranged(count, order, flows) {
  const needs = new Array(count).fill(0),
    next = Array.from({ length: count }, () => []);
  for (const flow of flows) {
    needs[flow.to] += 1;
    next[flow.from].push(flow.to);
  }
  const sorted = [...order.keys()].sort((a, b) => order[a] - order[b]);
  const rank = new Array(count);
  sorted.forEach((at, place) => {
    rank[at] = place;
  });
  const done = new Array(count).fill(false),
    ready = [],
    found = [];
  const push = (at) => {
    let place = ready.length;
    ready.push(at);
    while (place && rank[ready[place - 1]] < rank[at]) {
      ready[place] = ready[place - 1];
      place -= 1;
    }
    ready[place] = at;
  };
  sorted
    .slice()
    .reverse()
    .forEach((at) => {
      if (!needs[at]) push(at);
    });
  let first = 0;
  while (found.length < count) {
    if (!ready.length) {
      while (done[sorted[first]]) first += 1;
      push(sorted[first]);
    }
    const at = ready.pop();
    if (done[at]) continue;
    done[at] = true;
    found.push(at);
    for (const to of next[at]) if (!(needs[to] -= 1) && !done[to]) push(to);
  }
  return found;
}

// Kernels that both plans have, by their nodes; by what these compute where a lowering made others.
function match(one, other, sameNodes) {
  const key = (kernel) =>
    sameNodes
      ? [...kernel.told.nodes].sort().join(" ")
      : kernel.members
          .map((node) => node.signature)
          .sort()
          .join(" ");
  const left = new Map();
  for (const kernel of other.kernels) {
    const name = key(kernel);
    if (!left.has(name)) left.set(name, []);
    left.get(name).push(kernel);
  }
  for (const kernel of one.kernels) {
    const twin = (left.get(key(kernel)) || []).shift();
    if (twin) {
      kernel.twins = [twin];
      twin.twins = [kernel];
    } else kernel.only = true;
  }
  for (const rest of left.values()) for (const kernel of rest) kernel.only = true;
  if (!sameNodes) return;
  for (const [from, to] of [
    [one, other],
    [other, one],
  ]) {
    for (const kernel of from.kernels) {
      if (!kernel.only) continue;
      const places = new Set(kernel.told.nodes.map((node) => to.of.get(node)));
      kernel.twins = [...places].map((at) => to.kernels[at]);
    }
  }
}

function makeGraph(told) {
  const identical = told.plan.schedule === told.default_plan.schedule;
  const sameNodes = !told.chosen_nodes.length;
  const own = makeSide("default", told.default_groups, told.nodes, told.edges, told.default_plan);
  const sides = [own];
  if (!identical) {
    const nodes = sameNodes ? told.nodes : told.chosen_nodes;
    const edges = sameNodes ? told.edges : told.chosen_edges;
    sides.push(makeSide("chosen", told.groups, nodes, edges, told.plan));
    match(own, sides[1], sameNodes);
  }
  const pairs = told.possible_fusions.map((fusion, at) => makePair(fusion, at));
  const graph = { told, sides, pairs, sameNodes, identical };
  const touched = new Map();
  for (const pair of pairs) {
    for (const node of pair.nodes) {
      if (!touched.has(node)) touched.set(node, []);
      touched.get(node).push(pair);
    }
  }
  graph.pairsOf = (kernel) => {
    if (kernel.side !== "default" && !sameNodes) return [];
    kernel.fusions = kernel.fusions || [
      ...new Set(kernel.told.nodes.flatMap((n) => touched.get(n) || [])),
    ];
    return kernel.fusions;
  };
  const describe = new Map(told.nodes.map((node) => [node.name, node]));
  graph.textOfPair = (pair) => {
    if (pair.text === null) {
      const f = pair.told;
      const about = pair.nodes.flatMap((name) => [name, ...textOfNode(describe.get(name))]);
      pair.text = [f.a, f.b, f.reason, f.detail, pair.state, ...f.blocked_by, ...about]
        .join("\n")
        .toLowerCase();
    }
    return pair.text;
  };
  return graph;
}

const textOfNode = (node) =>
  node
    ? [
        node.kind,
        ...node.operators,
        ...node.sources,
        ...node.modules,
        ...node.reads,
        ...node.writes,
      ]
    : [];

function textOfKernel(kernel) {
  if (kernel.text === null) {
    const { told, members } = kernel;
    const about = members.flatMap((node) => [node.name, ...textOfNode(node)]);
    kernel.text = [told.kernel, told.bound_by, ...told.operators, ...about]
      .join("\n")
      .toLowerCase();
  }
  return kernel.text;
}

function makePair(told, at) {
  const differs = told.together_chosen !== null && told.together_chosen !== told.together;
  const nodes = [...told.a_nodes, ...told.b_nodes];
  return { told, at, state: told.outcome, differs, nodes, text: null };
}
