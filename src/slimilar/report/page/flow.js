// The network as rows: to the left the streams, drawn row by row like the map of a railway; then names and bars.

const LANE = 16;
const JOIN_SIGNS = { add: "+", concat: "∪", gate: "×", join: "•" };
const JOIN_WORDS = { add: "residual addition", concat: "concatenation", gate: "gate", join: "join" };

class FlowView {
  constructor(network, onSelect) {
    this.network = network;
    this.onSelect = onSelect;
    this.lanes = 1 + Math.max(0, ...network.rows.map((row) => row.lane));
    this.last = lastConsumers(network.rows);
    this.forks = network.rows.map((_, index) => network.rows.filter((row) => row.inputs.includes(index)).length > 1);
    this.longest = Math.sqrt(Math.max(1, ...network.rows.map((row) => row.width || 0)));
    this.items = network.rows.map((row, index) => this.build(row, index));
    byId("rows").replaceChildren(...this.items.map((item) => item.node));
    byId("rows").style.setProperty("--lanes", `${this.lanes * LANE}px`);
    this.buttons = this.items.filter((item) => item.button);
    if (this.buttons.length) this.buttons[0].button.tabIndex = 0;
    this.listen();
  }

  build(row, index) {
    const node = el("li", { className: `row ${row.kind}` }, this.streams(index));
    if (row.vector === undefined) {
      node.append(this.sign(row), el("span", { className: "word" }, this.words(row)));
      return { node, row };
    }
    const kept = el("i", { className: "kept" }), count = el("span", { className: "count" });
    const bar = el("span", { className: "bar" }, kept);
    bar.style.width = `${(100 * Math.sqrt(row.width)) / this.longest}%`;
    const [path, name] = splitName(row.name);
    const button = el("button", { type: "button", tabIndex: -1, className: row.reason ? "stays" : "" },
      el("span", { className: "name" }, el("span", { className: "path" }, el("bdi", {}, path)), el("b", {}, name)),
      el("span", { className: "lane" }, bar), count);
    button.dataset.row = index;
    node.append(this.sign(row), button);
    return { node, row, index, button, kept, count, bar };
  }

  sign(row) {
    const sign = el("span", { className: "sign", "aria-hidden": "true" }, JOIN_SIGNS[row.kind] || "");
    sign.style.left = `${row.lane * LANE + LANE / 2}px`;
    return sign;
  }

  words(row) {
    if (row.kind === "input") return `input ${row.shape.join(" × ")}`;
    if (row.kind === "output") return "output";
    return `${JOIN_WORDS[row.kind]} · ${row.name}`;
  }

  /** The lines that pass, arrive and leave within one row; stretched to its height. */
  streams(index) {
    const { rows } = this.network, row = rows[index], middle = (lane) => lane * LANE + LANE / 2;
    const line = (d, strong) => svg("path", { d, class: strong ? "stream" : "step" });
    const parts = [];
    for (let source = 0; source < index; source++) {
      if (this.last[source] > index) parts.push(line(`M${middle(rows[source].lane)} 0V100`, this.forks[source]));
    }
    for (const source of row.inputs) {
      const from = middle(rows[source].lane), to = middle(row.lane);
      const d = from === to ? `M${from} 0V50` : `M${from} 0C${from} 45 ${to} 10 ${to} 50`;
      parts.push(line(d, this.forks[source] && this.last[source] === index));
    }
    if (this.last[index] > index) {
      parts.push(line(`M${middle(row.lane)} 50V100`, this.forks[index]));
    }
    const viewBox = `0 0 ${this.lanes * LANE} 100`;
    return svg("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" }, ...parts);
  }

  listen() {
    const list = byId("rows");
    const itemAt = (event) => {
      const button = event.target.closest("button[data-row]");
      return button && this.items[button.dataset.row];
    };
    list.addEventListener("click", (event) => { const item = itemAt(event); if (item) this.onSelect(item.index); });
    list.addEventListener("keydown", (event) => this.walk(event));
    list.addEventListener("pointermove", (event) => {
      const item = itemAt(event);
      if (item && event.pointerType === "mouse") tip.show(this.lines(item), event.clientX, event.clientY);
      else tip.hide();
    });
    list.addEventListener("pointerleave", () => tip.hide());
    list.addEventListener("focusin", (event) => {
      const item = itemAt(event);
      if (!item || !item.button.matches(":focus-visible")) return;
      const box = item.bar.getBoundingClientRect();
      tip.show(this.lines(item), box.left, box.bottom);
    });
    list.addEventListener("focusout", () => tip.hide());
  }

  /** Arrows move the one row that Tab can reach. */
  walk(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    const now = this.buttons.findIndex((item) => item.button === document.activeElement);
    if (now < 0) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(this.buttons.length - 1, now + moves[event.key]));
    this.focus(this.buttons[next]);
  }

  focus(item) {
    for (const other of this.buttons) other.button.tabIndex = other === item ? 0 : -1;
    item.button.focus();
  }

  lines({ row, now }) {
    const kept = `${grouped(now)} of ${plural(row.width, "channel")} kept`;
    const group = this.network.groups[row.group];
    const others = group ? group.producers.length - 1 : 0;
    const joint = others ? `pruned together with ${plural(others, "other layer")}` : "";
    return [row.name, row.reason ? `kept whole: ${row.reason}` : kept, `output ${row.shape.join(" × ")}`, joint];
  }

  update(state, result, selected) {
    for (const item of this.buttons) {
      const { row } = item, now = result.widths[row.vector], own = state.own.has(row.group);
      const key = `${now}/${own}/${item.index === selected}`;
      if (item.key === key) continue;
      Object.assign(item, { key, now });
      item.kept.style.transform = `scaleX(${now / row.width})`;
      setText(item.count, now === row.width ? grouped(now) : `${grouped(now)} / ${grouped(row.width)}`);
      item.button.classList.toggle("own", own);
      item.button.classList.toggle("whole", now === row.width);
      item.button.setAttribute("aria-pressed", String(item.index === selected));
      setLabel(item.button, row.reason
        ? `${row.name}, ${plural(row.width, "channel")}, kept whole: ${row.reason}`
        : `${row.name}, ${now} of ${plural(row.width, "channel")} kept${own ? ", custom threshold" : ""}`);
    }
  }
}

/** For every row the last one that takes its stream. */
function lastConsumers(rows) {
  const last = rows.map((_, index) => index);
  rows.forEach((row, index) => row.inputs.forEach((source) => { last[source] = index; }));
  return last;
}

/** The path before a layer's own name gives way first when there is little room. */
function splitName(name) {
  const at = name.search(/[^.]+(\.\d+)*$/);
  return at > 0 ? [name.slice(0, at), name.slice(at)] : ["", name];
}
