// Before and after, layer by layer, as a table and as CSV.

const COLUMNS = [
  "layer", "channels before", "channels after", "FLOPs before", "FLOPs after",
  "parameters before", "parameters after", "note",
];

/** One line per layer, what lies between them, and the whole; the columns add up. */
function tableRows(network, state, result) {
  const index = new Map(network.modules.map((name, i) => [name, i]));
  const seen = new Set(), { before } = network;
  const lines = network.rows.filter((row) => row.vector !== undefined).map((row) => {
    // A module that runs twice is counted where it runs first.
    const module = seen.has(row.name) ? undefined : index.get(row.name);
    seen.add(row.name);
    const of = (costs, kind) => (module === undefined ? 0 : costs.modules[kind][module]);
    return [row.name, row.width, result.widths[row.vector], of(before, "flops"), of(result, "flops"),
      of(before, "params"), of(result, "params"), noteOf(row, state)];
  });
  const sum = (column) => lines.reduce((all, line) => all + line[column], 0);
  const rest = [before.flops - sum(3), result.flops - sum(4), before.params - sum(5), result.params - sum(6)];
  const whole = [before.flops, result.flops, before.params, result.params];
  return [...lines, ["batch norms, activations, pooling", "", "", ...rest, ""], ["total", sum(1), sum(2), ...whole, ofThese(network, sum(1))]];
}

/** The head of the page counts only channels that can be pruned. */
function ofThese(network, channels) {
  return channels === network.channels ? "" : `${grouped(network.channels)} of ${grouped(channels)} channels can be pruned`;
}

function noteOf(row, state) {
  if (row.reason) return `kept whole: ${row.reason}`;
  if (!state.own.has(row.group)) return "";
  const threshold = state.own.get(row.group);
  return threshold === 0 ? "all channels kept" : `custom threshold ${short(threshold)}`;
}

class TableView {
  constructor(network) {
    this.network = network;
    this.body = el("tbody");
    const heads = COLUMNS.map((name) => el("th", { scope: "col" }, name));
    byId("table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads)), this.body));
    this.cells = null;
    // Far below, and a thousand cells: drawn only when it is visible.
    new IntersectionObserver(([entry]) => { this.seen = entry.isIntersecting; this.refresh(); }, { rootMargin: "200px" })
      .observe(byId("table"));
  }

  update(state, result) {
    Object.assign(this, { state, result });
    if (this.seen || !this.cells) this.refresh();
  }

  refresh() {
    const { state, result } = this;
    if (!state) return;
    const lines = tableRows(this.network, state, result);
    if (!this.cells) this.build(lines);
    lines.forEach((line, i) => line.forEach((value, j) => setText(this.cells[i][j], cellText(value, j))));
  }

  build(lines) {
    this.cells = lines.map(() => COLUMNS.map((_, j) => (j ? el("td") : el("th", { scope: "row" }))));
    this.body.replaceChildren(...this.cells.map((cells) => el("tr", {}, ...cells)));
  }
}

function cellText(value, column) {
  if (typeof value !== "number") return value;
  return column < 3 ? grouped(value) : human(value);
}

function toCsv(lines) {
  // A name that a spreadsheet would run as a formula becomes text.
  const field = (value) => {
    const text = String(value), safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [COLUMNS, ...lines].map((line) => `${line.map(field).join(",")}\r\n`).join("");
}

/** Measurements that came with the report, as they are. */
function showMeasured(lines) {
  byId("measured").hidden = !lines.length;
  const names = [...new Set(lines.flatMap(Object.keys))];
  const text = (value) => (typeof value === "number" ? short(value) : String(value ?? ""));
  const head = el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)));
  const body = lines.map((line) => el("tr", {}, ...names.map((name, i) => el(i ? "td" : "th", {}, text(line[name])))));
  byId("measured-table").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}
