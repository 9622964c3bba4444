// Every channel of a layer at its beta and gamma; removed ones are connected to their representative.

class ScatterView {
  constructor() {
    this.surface = new Surface("Gamma and beta", (width) => 0.82 * width, (...given) => this.draw(...given));
    this.surface.onHover((x, y, event) => this.explain(x, y, event), () => tip.hide());
  }

  get node() { return this.surface.canvas; }

  show(group, norm, representative, clusters) {
    Object.assign(this, { group, norm, representative });
    const many = clusters.filter(([, members]) => members.length > 1);
    this.inks = new Map(many.slice(0, CLUSTER_INKS.length).map(([kept], i) => [kept, CLUSTER_INKS[i]]));
    const size = `${plural(group.width, "channel")} in ${plural(clusters.length, "cluster")}`;
    setLabel(this.node, `Gamma against beta of ${size}`);
    this.surface.draw();
  }

  scales(width, height) {
    const { gamma, beta } = this.norm, pad = { left: AXIS + 8, right: 10, top: 10, bottom: 34 };
    const [x0, x1] = padded(beta), [y0, y1] = padded(gamma);
    return {
      x: (value) => pad.left + ((value - x0) / (x1 - x0)) * (width - pad.left - pad.right),
      y: (value) => height - pad.bottom - ((value - y0) / (y1 - y0)) * (height - pad.top - pad.bottom),
      xs: niceTicks(x0, x1, 5), ys: niceTicks(y0, y1, 5), pad,
    };
  }

  draw(context, width, height) {
    if (!this.norm) return;
    const scales = this.scales(width, height);
    this.drawAxes(context, scales, width, height);
    this.places = Array.from(this.norm.beta, (beta, unit) => [scales.x(beta), scales.y(this.norm.gamma[unit])]);
    this.drawThreads(context);
    this.places.forEach((_, unit) => { if (this.representative[unit] !== unit) this.drawUnit(context, unit, false); });
    this.places.forEach((_, unit) => { if (this.representative[unit] === unit) this.drawUnit(context, unit, true); });
  }

  drawAxes(context, { x, y, xs, ys, pad }, width, height) {
    context.font = `11px ${ink("sans")}`;
    context.fillStyle = ink("muted");
    context.strokeStyle = ink("line");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.beginPath();
    for (const tick of xs) { context.moveTo(x(tick), pad.top); context.lineTo(x(tick), height - pad.bottom); }
    for (const tick of ys) { context.moveTo(pad.left, y(tick)); context.lineTo(width - pad.right, y(tick)); }
    context.stroke();
    context.textAlign = "center";
    for (const tick of xs) context.fillText(short(tick), x(tick), height - pad.bottom + 12);
    context.fillText("β", (pad.left + width - pad.right) / 2, height - 6);
    context.textAlign = "right";
    for (const tick of ys) context.fillText(short(tick), pad.left - 6, y(tick));
    context.textAlign = "left";
    context.fillText("γ", 2, (pad.top + height - pad.bottom) / 2);
  }

  color(unit) {
    const kept = this.representative[unit];
    return this.inks.get(kept) || ink(kept === unit ? "kept" : "gone");
  }

  drawThreads(context) {
    context.lineWidth = 0.8;
    context.globalAlpha = 0.45;
    this.places.forEach(([x, y], unit) => {
      const kept = this.representative[unit];
      if (kept < 0 || kept === unit) return;
      context.strokeStyle = this.color(unit);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(...this.places[kept]);
      context.stroke();
    });
    context.globalAlpha = 1;
  }

  /** Kept channels are full discs with a rim, removed ones small rings: no colour is needed to tell them apart. */
  drawUnit(context, unit, kept) {
    const [x, y] = this.places[unit], size = this.group.width > 300 ? 0.75 : 1;
    context.beginPath();
    context.arc(x, y, (kept ? 4.2 : 2.6) * size, 0, 2 * Math.PI);
    context.fillStyle = kept ? this.color(unit) : ink("card");
    context.fill();
    context.lineWidth = kept ? 1 : 1.3;
    context.strokeStyle = kept ? ink("card") : this.color(unit);
    context.stroke();
  }

  explain(x, y, event) {
    if (!this.places) return;
    const gap = ([a, b]) => (a - x) ** 2 + (b - y) ** 2;
    const unit = this.places.reduce((best, place, i) => (gap(place) < gap(this.places[best]) ? i : best), 0);
    if (gap(this.places[unit]) > 200) { tip.hide(); return; }
    const kept = this.representative[unit], { gamma, beta } = this.norm;
    const fate = kept === unit ? "kept" : kept < 0 ? "removed" : `removed; represented by channel ${kept}`;
    const place = `γ ${short(gamma[unit])}, β ${short(beta[unit])}`;
    tip.show([`channel ${unit}`, fate, place], event.clientX, event.clientY);
  }
}

/** The range of some numbers with a little air around it. */
function padded(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const air = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - air, high + air];
}

function niceTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push(k * step);
  return ticks;
}
