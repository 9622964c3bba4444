// Representatives, clusters and the dendrogram, from the removal order of a group.

/** The representative of every unit after some steps; -1 where there is none. */
function representatives(group, steps) {
  const representative = Int32Array.from({ length: group.width }, (_, unit) => unit);
  // Backwards, because the representative at a step may be removed at a later one.
  for (let step = steps - 1; step >= 0; step--) {
    const next = group.representative[step];
    representative[group.removed[step]] = next < 0 ? -1 : representative[next];
  }
  return representative;
}

/** Members by representative, the largest cluster first. */
function clustersOf(representative) {
  const found = new Map();
  representative.forEach((kept, unit) => {
    if (kept < 0) return;
    if (!found.has(kept)) found.set(kept, []);
    found.get(kept).push(unit);
  });
  return [...found].sort((a, b) => b[1].length - a[1].length || a[0] - b[0]);
}

/** The tree of a group: `leaves` in drawing order, and one fork for every step, lowest first. */
function treeOf(group) {
  if (group.tree) return group.tree;
  const leaves = leafOrder(group);
  const center = new Float64Array(group.width), top = new Float64Array(group.width);
  leaves.forEach((unit, position) => { center[unit] = position + 0.5; });
  const forks = Array.from(group.removed, (gone, step) => {
    const height = group.heights[step], stays = group.representative[step];
    const fork = { height, b: center[gone], bTop: top[gone], a: null, aTop: 0 };
    if (stays >= 0) {
      Object.assign(fork, { a: center[stays], aTop: top[stays] });
      center[stays] = (center[stays] + center[gone]) / 2;
      top[stays] = height;
    }
    return fork;
  });
  group.tree = { leaves, forks };
  return group.tree;
}

/** Members of a merge stand side by side: lists are chained from their heads, without copying. */
function leafOrder(group) {
  const next = new Int32Array(group.width).fill(-1);
  const head = Int32Array.from(next, (_, unit) => unit), tail = head.slice();
  const gone = new Uint8Array(group.width);
  group.removed.forEach((unit, step) => {
    const stays = group.representative[step];
    if (stays < 0) return;
    gone[unit] = 1;
    next[tail[stays]] = head[unit];
    tail[stays] = tail[unit];
  });
  const leaves = [];
  for (let unit = 0; unit < group.width; unit++) {
    if (gone[unit]) continue;
    for (let at = head[unit]; at >= 0; at = next[at]) leaves.push(at);
  }
  return leaves;
}

/** The distances (Eq. 4) of some units, row by row, summed over batch norms and scaled to 0..1 as in the layer. */
function distancesOf(group, units) {
  const n = units.length;
  const distances = new Float32Array(n * n);
  for (const { gamma, beta } of group.norms) {
    for (let i = 0; i < n; i++) {
      const b = beta[units[i]], spread = gamma[units[i]] ** 2;
      for (let j = 0; j < i; j++) {
        const gap = b - beta[units[j]];
        distances[i * n + j] += gap * gap + spread + gamma[units[j]] ** 2;
      }
    }
  }
  const { low, scale } = rangeOf(group, units, distances);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < i; j++) {
      distances[j * n + i] = distances[i * n + j] = Math.min(1, Math.max(0, (distances[i * n + j] - low) * scale));
    }
  }
  return distances;
}

/** Units that cannot be removed do not affect the scale. */
function rangeOf(group, units, distances) {
  const fixed = new Set(group.fixed.flatMap(([, held]) => held));
  const n = units.length;
  let low = Infinity, high = 0;
  for (let i = 0; i < n; i++) {
    if (fixed.has(units[i])) continue;
    for (let j = 0; j < i; j++) {
      if (fixed.size && fixed.has(units[j])) continue;
      const d = distances[i * n + j];
      if (d < low) low = d;
      if (d > high) high = d;
    }
  }
  return { low: low === Infinity ? 0 : low, scale: high > low ? 1 / (high - low) : 1 };
}
