// Where each kernel stands: in layers along the data flow, the same heights in both plans, so that
// a kernel that both have lies side by side with itself. Draws nothing.

const BOX = { width: 196, height: 58, across: 22, down: 40 };
// Kernels side by side at most; a layer of more takes several rows.
const ABREAST = 6;

// Gives every kernel x and y, and each side a width and height.
function layOut(graph) {
  const ranks = commonRanks(graph.sides);
  const rows = graph.sides.map(() => []);
  graph.sides.forEach((side, s) => {
    const rank = ranksOf(side, ranks);
    side.kernels.forEach((kernel, at) => {
      (rows[s][rank[at]] = rows[s][rank[at]] || []).push(kernel);
    });
  });
  const layers = Math.max(...rows.map((r) => r.length));
  let y = BOX.down / 2;
  const placed = graph.sides.map(() => []);
  for (let layer = 0; layer < layers; layer += 1) {
    const split = rows.map((r) => wrapped(r[layer] || []));
    const high = Math.max(...split.map((s) => s.length));
    split.forEach((lines, s) =>
      lines.forEach((line, at) => {
        for (const kernel of line) kernel.y = y + at * (BOX.height + BOX.down);
        placed[s].push(line);
      }),
    );
    y += high * (BOX.height + BOX.down);
  }
  graph.sides.forEach((side, s) => {
    across(side, placed[s]);
    side.height = y + BOX.down / 2;
  });
}

function wrapped(line) {
  const lines = [];
  const many = Math.ceil(line.length / ABREAST);
  const each = Math.ceil(line.length / Math.max(many, 1));
  for (let at = 0; at < line.length; at += each) lines.push(line.slice(at, at + each));
  return lines;
}

// Layers of the kernels of all plans together, those that two plans share counted once.
function commonRanks(sides) {
  const index = new Map(),
    order = [];
  const of = (kernel) => {
    const twin = !kernel.only && kernel.twins.length === 1 ? kernel.twins[0] : null;
    const name = twin && kernel.side === "chosen" ? twin : kernel;
    if (!index.has(name)) {
      index.set(name, order.length);
      order.push(kernel.order);
    }
    return index.get(name);
  };
  for (const side of sides) side.kernels.forEach(of);
  const seen = new Set(),
    flows = [];
  for (const side of sides) {
    for (const flow of side.flows) {
      const from = of(side.kernels[flow.from]),
        to = of(side.kernels[flow.to]);
      const key = from * order.length + to;
      if (!seen.has(key)) {
        seen.add(key);
        flows.push({ from, to });
      }
    }
  }
  const found = longest(order.length, order, flows);
  return (kernel) => found[of(kernel)];
}

// Layer of each vertex by the longest way to it; what needs nothing stands right before its use.
function longest(count, order, flows) {
  const run = arranged(count, order, flows);
  const place = new Array(count);
  run.forEach((at, p) => {
    place[at] = p;
  });
  const forward = flows.filter((flow) => place[flow.from] < place[flow.to]);
  const from = Array.from({ length: count }, () => []),
    into = Array.from({ length: count }, () => []);
  for (const flow of forward) {
    from[flow.to].push(flow.from);
    into[flow.from].push(flow.to);
  }
  const rank = new Array(count).fill(0);
  for (const at of run)
    for (const other of from[at]) rank[at] = Math.max(rank[at], rank[other] + 1);
  for (const at of run) {
    if (!from[at].length && into[at].length)
      rank[at] = Math.min(...into[at].map((o) => rank[o])) - 1;
  }
  return rank;
}

// The common layers, moved down where this plan's own order needs it.
function ranksOf(side, common) {
  const rank = side.kernels.map(common);
  for (const at of side.run) {
    for (const flow of side.kernels[at].from) {
      if (side.kernels[flow.from].place < side.kernels[at].place) {
        rank[at] = Math.max(rank[at], rank[flow.from] + 1);
      }
    }
  }
  return rank;
}

// x of the kernels: near those that they are tied to, line by line, down and up again.
function across(side, lines) {
  const step = BOX.width + BOX.across;
  for (const line of lines) {
    line.sort((a, b) => a.order - b.order);
    line.forEach((kernel, at) => {
      kernel.x = (at - (line.length - 1) / 2) * step;
    });
  }
  for (let sweep = 0; sweep < 4; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const line of down ? lines : [...lines].reverse()) settle(side, line, down, step);
  }
  let left = Infinity,
    right = -Infinity;
  for (const kernel of side.kernels) {
    left = Math.min(left, kernel.x);
    right = Math.max(right, kernel.x);
  }
  if (!side.kernels.length) left = right = 0;
  for (const kernel of side.kernels) kernel.x += BOX.across - left;
  side.width = right - left + BOX.width + 2 * BOX.across;
}

function settle(side, line, down, step) {
  const wanted = new Map();
  for (const kernel of line) {
    const near = (down ? kernel.from.map((f) => f.from) : kernel.into.map((f) => f.to)).map(
      (at) => side.kernels[at].x,
    );
    wanted.set(kernel, near.length ? near.reduce((a, b) => a + b, 0) / near.length : kernel.x);
  }
  line.sort((a, b) => wanted.get(a) - wanted.get(b) || a.order - b.order);
  let off = 0;
  line.forEach((kernel, at) => {
    kernel.x = at ? Math.max(wanted.get(kernel), line[at - 1].x + step) : wanted.get(kernel);
    off += wanted.get(kernel) - kernel.x;
  });
  for (const kernel of line) kernel.x += off / line.length;
}
