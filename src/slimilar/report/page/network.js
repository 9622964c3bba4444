// The plan: widths and costs in any state, the same numbers as Plan.at in Python.
//
// A state is { threshold, roundTo, own: Map(group -> threshold) }; roundTo is a number or "auto".

class Network {
  constructor(data) {
    this.rows = data.rows;
    this.modules = data.modules;
    this.costs = data.costs;
    this.groups = data.groups.map((group, index) => readGroup(group, index, data.minChannels));
    this.vectors = data.vectors.map(([fixed, ...entries]) => this.readVector(fixed, entries));
    this.rowOf = new Map(this.rows.map((row, index) => [row.name, index]).reverse());
    this.rows.forEach((row) => { row.group = this.groupOf(row); });
    // Criteria that rank channels one by one have no representatives.
    this.merges = this.groups.some((group) => group.representative.some((unit) => unit >= 0));
    this.channels = this.groups.reduce((sum, group) => sum + group.width, 0);
    this.before = this.measure({ threshold: 0, roundTo: 1, own: new Map() });
  }

  /** Where units of a group occur unevenly, `left[s]` says how many places remain after s steps. */
  readVector(fixed, entries) {
    return { fixed, parts: entries.map(([g, times]) => {
      if (typeof times === "number") return { g, times, left: null };
      const { removed } = this.groups[g];
      const left = new Int32Array(removed.length + 1);
      left[0] = times.reduce((sum, n) => sum + n, 0);
      removed.forEach((unit, step) => { left[step + 1] = left[step] - times[unit]; });
      return { g, times: 0, left };
    }) };
  }

  groupOf(row) {
    if (row.vector === undefined || row.reason) return -1;
    const { parts } = this.vectors[row.vector];
    return parts.length ? parts[0].g : -1;
  }

  /** How many units of every group are removed. */
  steps(state) {
    return this.groups.map((group, g) => {
      const threshold = state.own.has(g) ? state.own.get(g) : state.threshold;
      const wanted = group.width - Math.min(group.limit, countBelow(group.heights, threshold));
      const multiple = state.roundTo === "auto" ? group.multiple : state.roundTo;
      return group.width - Math.min(group.width, Math.ceil(wanted / multiple) * multiple);
    });
  }

  /** The width of every vector after so many steps in every group. */
  widths(steps) {
    return this.vectors.map(({ fixed, parts }) => {
      let width = fixed;
      for (const { g, times, left } of parts) {
        width += left ? left[steps[g]] : times * (this.groups[g].width - steps[g]);
      }
      return width;
    });
  }

  /** FLOPs, MACs and parameters, in total and by module. */
  measure(state) {
    const steps = this.steps(state);
    const widths = this.widths(steps);
    const modules = { flops: this.zeros(), macs: this.zeros(), params: this.zeros() };
    for (const [module, flops, macs, ...vectors] of this.costs.terms) {
      const size = product(widths, vectors);
      modules.flops[module] += flops * size;
      modules.macs[module] += macs * size;
    }
    for (const [module, params, ...vectors] of this.costs.parameters) {
      modules.params[module] += params * product(widths, vectors);
    }
    const kept = this.groups.map((group, g) => group.width - steps[g]);
    return {
      steps, widths, kept, modules, channels: total(kept),
      flops: total(modules.flops), macs: total(modules.macs), params: total(modules.params),
    };
  }

  zeros() { return new Float64Array(this.modules.length); }

  /** All thresholds at which something changes: 0, and just above every height that can be reached. */
  get thresholds() {
    if (!this.changes) {
      const heights = this.groups.flatMap(({ heights, limit }) =>
        Array.from(heights.subarray(0, Math.min(limit, countBelow(heights, 1)))));
      const unique = [...new Set(heights)].sort((a, b) => a - b);
      this.changes = [0, ...unique.map(nextUp)];
    }
    return this.changes;
  }

  /** The smallest threshold within a budget, or what the smallest reachable cost is. */
  meet(kind, limit, state) {
    const { thresholds } = this;
    const cost = (i) => this.measure({ ...state, threshold: thresholds[i] })[kind];
    let low = 0, high = thresholds.length - 1;
    const smallest = cost(high);
    if (smallest > limit) return { smallest };
    while (low < high) {
      const middle = (low + high) >> 1;
      if (cost(middle) <= limit) high = middle;
      else low = middle + 1;
    }
    return { threshold: thresholds[low] };
  }
}

function readGroup(group, index, minChannels) {
  const heights = decode(group.heights, Float64Array);
  return {
    ...group, index, heights,
    removed: decode(group.removed, Int32Array),
    representative: decode(group.representative, Int32Array),
    limit: Math.max(0, Math.min(heights.length, group.width - minChannels)),
    norms: group.norms.map(({ module, gamma, beta }) =>
      ({ module, gamma: decode(gamma, Float32Array), beta: decode(beta, Float32Array) })),
  };
}

function product(widths, vectors) {
  let size = 1;
  for (const v of vectors) size *= widths[v];
  return size;
}

function total(numbers) {
  let sum = 0;
  for (const n of numbers) sum += n;
  return sum;
}

const UNITS = { "": 1, k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, "%": 0.01 };

/** A budget as people type it: "50%", "0.5", "4.4G". NaN where it is not one. */
function parseBudget(text, before) {
  const match = /^\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgbt%]?)\s*$/.exec(text.toLowerCase());
  if (!match) return NaN;
  const number = Number(match[1]) * UNITS[match[2]];
  const share = match[2] === "%" || (!match[2] && Number(match[1]) <= 1);
  if (!(number > 0) || !Number.isFinite(number)) return NaN;
  return share ? number * before : number;
}
