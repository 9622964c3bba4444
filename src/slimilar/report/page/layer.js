// One layer in detail: its threshold, dendrogram, distances, gamma and beta, and the widths of its neighbours.

class LayerView {
  constructor(network, actions) {
    this.network = network;
    this.actions = actions;
    this.panel = byId("layer");
    this.tree = new TreeView((threshold) => this.group && actions.override(this.group.index, threshold));
    this.heat = new HeatView();
    this.scatter = new ScatterView();
    this.norm = 0;
  }

  /** Build the panel of a row; null closes it. */
  open(index) {
    this.index = index;
    this.panel.hidden = index === null;
    document.body.classList.toggle("closeup", index !== null);
    if (index === null) return;
    this.row = this.network.rows[index];
    this.group = this.network.groups[this.row.group] || null;
    this.norm = 0;
    this.near = this.neighbours();
    this.title = el("h2", { id: "layer-title" }, this.row.name);
    this.widths = el("p", { className: "widths" });
    const close = el("button", { type: "button", className: "quiet close", label: "Close this layer" }, "Close");
    close.addEventListener("click", () => this.actions.close());
    const head = el("header", {}, el("div", {}, this.title, this.widths), close);
    this.around = el("div", { className: "around" });
    this.panel.replaceChildren(head, ...(this.group ? this.parts() : [this.whyNot(), this.around]));
  }

  whyNot() {
    const reason = this.row.reason || "none of its channels can be removed";
    return el("p", { className: "why" }, el("b", {}, "Kept whole: "), reason, ".");
  }

  parts() {
    this.summary = el("p", { className: "fine" });
    const known = this.group.norms.length > 0;
    const figure = (caption, ...nodes) => el("figure", {}, el("figcaption", {}, caption), ...nodes);
    const when = this.network.merges ? "The distance at which channels merge." : "The rank of every channel.";
    const tree = figure(`${when} Drag the line to set a custom threshold for this layer.`, this.tree.node);
    if (!known) return [this.ownControls(), tree, this.summary, this.around];
    tree.append(this.heat.node, this.heatKey());
    const rings = this.network.merges ? "rings are removed, and connected to their representative" : "rings are removed";
    const scatter = figure(`Every channel at its shift β and scale γ. Discs are kept; ${rings}.`,
      this.normChoice(), this.scatter.node);
    const beside = el("div", {}, scatter, this.summary, this.around);
    return [this.ownControls(), el("div", { className: "plots" }, tree, beside)];
  }

  heatKey() {
    return el("p", { className: "heat-key" }, el("span", {}, "similar"), el("i"), el("span", {}, "dissimilar"));
  }

  /** A channel may be normalised more than once (streams, concatenations): choose which batch norm to show. */
  normChoice() {
    const { norms } = this.group;
    if (norms.length < 2) return "";
    const select = el("select", { label: "Batch norm" }, ...norms.map(({ module }, i) =>
      el("option", { value: i }, this.network.modules[module])));
    select.addEventListener("change", () => { this.norm = Number(select.value); this.refresh(); });
    return select;
  }

  ownControls() {
    const g = this.group.index;
    this.follow = el("button", { type: "button" }, "Global threshold");
    this.whole = el("button", { type: "button" }, "Keep all channels");
    this.slider = el("input", { type: "range", min: 0, max: 1000, step: 1, label: "Custom threshold of this layer" });
    this.number = el("input", { type: "text", inputMode: "decimal", label: "Custom threshold as a number" });
    this.follow.addEventListener("click", () => this.actions.override(g, null));
    this.whole.addEventListener("click", () => this.actions.override(g, 0));
    this.slider.addEventListener("input", () => this.actions.override(g, toThreshold(this.slider.value / 1000)));
    this.number.addEventListener("change", () => this.actions.override(g, this.actions.read(this.number, this.now)));
    return el("div", { className: "own-controls" },
      el("div", { className: "tabs", role: "group", label: "Threshold of this layer" }, this.follow, this.whole),
      el("label", { className: "own-slider" }, el("span", {}, "custom"), this.slider), this.number);
  }

  update(state, result) {
    if (this.index === null || this.index === undefined) return;
    Object.assign(this, { state, result });
    const kept = result.widths[this.row.vector];
    setText(this.widths, this.group
      ? `${grouped(this.row.width)} → ${grouped(kept)} channels (${saved(this.row.width, kept)})`
      : plural(this.row.width, "channel"));
    if (this.group) this.refresh();
    this.around.replaceChildren(el("h3", {}, "Neighbouring layers"), ...this.near.map((entry) => this.list(...entry)));
  }

  refresh() {
    const { group, state, result } = this, g = group.index, steps = result.steps[g];
    const own = state.own.has(g);
    this.now = own ? state.own.get(g) : state.threshold;
    this.follow.setAttribute("aria-pressed", String(!own));
    this.whole.setAttribute("aria-pressed", String(own && this.now === 0));
    this.slider.value = String(Math.round(1000 * toPosition(this.now)));
    this.slider.style.setProperty("--at", toPosition(this.now));
    this.slider.classList.toggle("unset", !own);
    this.slider.setAttribute("aria-valuetext", `${short(this.now)}${own ? "" : ", the global threshold"}`);
    if (document.activeElement !== this.number) this.number.value = short(this.now);
    const representative = representatives(group, steps), clusters = clustersOf(representative);
    this.tree.show(group, steps, this.now);
    if (group.norms.length) {
      this.heat.show(group, representative);
      this.scatter.show(group, group.norms[Math.min(this.norm, group.norms.length - 1)], representative, clusters);
    }
    setText(this.summary, this.words(steps, clusters));
  }

  words(steps, clusters) {
    const { group } = this, undone = Math.min(group.limit, countBelow(group.heights, this.now)) - steps;
    const largest = clusters.filter(([, members]) => members.length > 1).slice(0, 3).map(([unit, members]) =>
      `${unit} represents ${listed(members.filter((other) => other !== unit))}`);
    const rounding = undone > 0 ? ` Rounding undoes ${plural(undone, "merge")}.` : "";
    const each = this.row.width / group.width;
    const units = each > 1 && Number.isInteger(each) ? ` Each unit is ${each} channels that can only be removed together.` : "";
    const fixed = group.fixed.map(([reason, held]) =>
      ` ${plural(held.length, "channel")} cannot be removed: ${reason}.`).join("");
    const largestText = largest.length ? ` Channel ${largest.join("; channel ")}.` : "";
    return `${plural(steps, this.network.merges ? "merge" : "removal")}.${units}${rounding}${fixed}${largestText}`;
  }

  /** The rows of the layers before this one, of those pruned together with it, and of its consumers. */
  neighbours() {
    const { rowOf, modules } = this.network;
    const rowsOf = (names) => [...new Set(names)].map((m) => rowOf.get(modules[m])).filter((i) => i !== undefined);
    const inputs = ["input from", this.inputLayers(this.index)];
    if (!this.group) return [inputs, ["output to", this.consumers()]];
    const together = rowsOf(this.group.producers).filter((i) => i !== this.index);
    return [inputs, ["pruned together with", together], ["output to", rowsOf(this.group.consumers)]];
  }

  /** The layers behind a row, looking through joins. */
  inputLayers(index, seen = new Set()) {
    return this.network.rows[index].inputs.flatMap((source) => {
      if (seen.has(source)) return [];
      seen.add(source);
      return this.network.rows[source].vector === undefined ? this.inputLayers(source, seen) : [source];
    });
  }

  consumers() {
    const reads = (row, i) => row.vector !== undefined && this.inputLayers(i).includes(this.index);
    return this.network.rows.flatMap((row, i) => (reads(row, i) ? [i] : []));
  }

  list(word, indices) {
    if (!indices.length) return "";
    const shown = indices.slice(0, 6).map((i) => {
      const row = this.network.rows[i], now = this.result.widths[row.vector];
      const button = el("button", { type: "button", className: "chip" }, el("b", {}, row.name),
        now === row.width ? ` ${grouped(now)}` : ` ${grouped(row.width)} → ${grouped(now)}`);
      button.addEventListener("click", () => this.actions.select(i));
      return button;
    });
    const more = indices.length > 6 ? el("span", { className: "fine" }, `and ${indices.length - 6} more`) : "";
    return el("p", {}, el("span", { className: "word" }, word), ...shown, more);
  }
}

function listed(units) {
  return units.length > 5 ? `${units.slice(0, 5).join(", ")} and ${units.length - 5} more` : units.join(", ");
}
