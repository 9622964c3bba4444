// The trade-off curve: what is kept at every threshold. A dot marks the current one, diamonds mark measured networks.

const LINES = [["flops", "FLOPs"], ["params", "parameters"], ["channels", "channels"]];
const SAMPLES = 160;

class CurveView {
  constructor(network, points, onPick) {
    this.network = network;
    this.points = points;
    this.lines = LINES.map(([kind]) => svg("path", { class: `curve ${kind}` }));
    this.dots = LINES.map(([kind]) => svg("circle", { class: `dot ${kind}`, r: kind === "flops" ? 6 : 4 }));
    this.rule = svg("line", { class: "rule" });
    this.frame = svg("g");
    this.marks = svg("g", { class: "marks" });
    const layers = [this.frame, this.rule, ...this.lines, this.marks, ...this.dots];
    this.root = svg("svg", { class: "plot", role: "img" }, ...layers);
    byId("curve").replaceChildren(this.root);
    const key = (kind) => svg("svg", { viewBox: "0 0 22 6", class: "key" },
      svg("path", { d: "M1 3H21", class: `curve ${kind}` }));
    byId("curve-legend").replaceChildren(...LINES.map(([kind, word]) => el("span", {}, key(kind), word)));
    const pick = (event) => {
      if (event.buttons) onPick(toThreshold(Math.max(0, Math.min(1, this.share(event)))));
    };
    this.root.addEventListener("pointerdown", (event) => { this.root.setPointerCapture(event.pointerId); pick(event); });
    this.root.addEventListener("pointermove", pick);
    new ResizeObserver(() => this.fit()).observe(byId("curve"));
  }

  share(event) {
    const box = this.root.getBoundingClientRect();
    return (event.clientX - box.left - this.left) / (this.width - this.left - this.right);
  }

  x(threshold) { return this.left + toPosition(threshold) * (this.width - this.left - this.right); }

  y(share) { return this.top + (1 - share) * (this.height - this.top - this.bottom); }

  fit() {
    const width = byId("curve").clientWidth;
    if (!width || width === this.width) return;
    const height = Math.round(Math.max(190, Math.min(250, width * 0.4)));
    Object.assign(this, { width, height, left: 40, right: 12, top: 20, bottom: 34 });
    this.root.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.drawFrame();
    this.key = null;
    if (this.state) this.update(this.state, this.result);
  }

  drawFrame() {
    const text = (x, y, words, cls) => svg("text", { x, y, class: cls }, words);
    const parts = [];
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const y = this.y(share);
      parts.push(svg("line", { x1: this.left, x2: this.width - this.right, y1: y, y2: y, class: "grid" }));
      parts.push(text(this.left - 6, y + 4, `${100 * share}%`, "end"));
    }
    for (const tick of TICKS) {
      if (this.width < 460 && [0.01, 0.05, 0.3, 0.75].includes(tick)) continue;
      parts.push(text(this.x(tick), this.height - 18, String(tick), "middle"));
    }
    parts.push(text((this.left + this.width - this.right) / 2, this.height - 2, "threshold", "middle faint"));
    this.frame.replaceChildren(...parts);
  }

  update(state, result) {
    Object.assign(this, { state, result });
    if (!this.width) return;
    const key = `${state.roundTo}|${[...state.own]}`;
    if (key !== this.key) this.trace(state, key);
    const x = this.x(state.threshold), shares = LINES.map(([kind]) => this.shareOf(result, kind));
    const ends = { x1: x, x2: x, y1: this.top, y2: this.height - this.bottom };
    for (const [name, value] of Object.entries(ends)) this.rule.setAttribute(name, value);
    this.dots.forEach((dot, i) => { dot.setAttribute("cx", x); dot.setAttribute("cy", this.y(shares[i])); });
    const kept = LINES.map(([, word], i) => `${percent(shares[i])} of ${word}`).join(", ");
    setLabel(this.root, `Trade-off curve. At threshold ${short(state.threshold)}: ${kept} kept.`);
  }

  shareOf(result, kind) { return result[kind] / Math.max(1, this.network.before[kind]); }

  /** The curves depend on rounding and on single layers, not on the threshold. */
  trace(state, key) {
    this.key = key;
    this.samples = Array.from({ length: SAMPLES + 1 }, (_, i) => {
      const threshold = (i / SAMPLES) ** 2;
      return { threshold, result: this.network.measure({ ...state, threshold }) };
    });
    LINES.forEach(([kind], i) => {
      const places = this.samples.map(({ threshold, result }) =>
        `${this.x(threshold).toFixed(1)} ${this.y(this.shareOf(result, kind)).toFixed(1)}`);
      this.lines[i].setAttribute("d", `M${places.join("L")}`);
    });
    this.mark();
  }

  /** Beside a mark, the first place for its words that no others have taken. */
  room(x, y, wide, taken) {
    const high = 14;
    const start = (place) => (place.left ? place.x - place.wide : place.x);
    const meet = (a, b) => start(a) < start(b) + b.wide && start(b) < start(a) + a.wide && Math.abs(a.y - b.y) < high;
    const sides = x > this.width - 90 ? [true, false] : [false, true];
    const places = [-5, 17, -19, 31].flatMap((down) =>
      sides.map((left) => ({ x: left ? x - 9 : x + 9, y: y + down, left, wide })));
    return places.find((place) => !taken.some((other) => meet(place, other))) || places[0];
  }

  /** The measured networks where the curve has their FLOPs; those side by side are one place. */
  places() {
    const found = [];
    for (const { label, flops, accuracy } of [...this.points].sort((a, b) => b.flops - a.flops)) {
      const next = this.samples.findIndex(({ result }) => result.flops <= flops);
      const x = this.x(next < 0 ? 1 : this.samples[next].threshold), y = this.y(flops / this.network.before.flops);
      const last = found.at(-1);
      if (last && x - last.x < 18) last.points.push({ label, flops, accuracy });
      else found.push({ x, y, points: [{ label, flops, accuracy }] });
    }
    return found;
  }

  /** A diamond for every place, with the accuracy there, or from the lowest to the highest. */
  mark() {
    const taken = [];
    this.marks.replaceChildren(...this.places().map(({ x, y, points }) => {
      const known = points.map(({ accuracy }) => accuracy);
      const [low, high] = [Math.min(...known), Math.max(...known)];
      const words = low === high ? percent(low) : `${(100 * low).toFixed(1)} to ${percent(high)}`;
      const place = this.room(x, y, 8 + 6.5 * words.length, taken);
      taken.push(place);
      const mark = svg("g", { class: "mark" }, svg("path", { d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z` }),
        svg("text", { x: place.x, y: place.y, class: place.left ? "end" : "" }, words));
      const lines = points.map(({ label, flops, accuracy }) => `${label}: ${percent(accuracy)} at ${human(flops)} FLOPs`);
      mark.append(svg("title", {}, lines.join("\n")));
      return mark;
    }));
  }
}
