// The distance matrix of one layer, in the order of the tree, so that clusters are squares along the diagonal.

const MOST_CELLS = 768; // wider layers are sampled: a screen has no more pixels to show

class HeatView {
  constructor() {
    this.surface = new Surface("Distances", (width) => width - AXIS, (...given) => this.draw(...given));
    this.surface.onHover((x, y, event) => this.explain(x, y, event), () => tip.hide());
  }

  get node() { return this.surface.canvas; }

  show(group, representative) {
    const theme = ink("heat-near");
    if (group !== this.group || theme !== this.theme) {
      Object.assign(this, { group, theme });
      this.paint();
    }
    this.representative = representative;
    const order = "in the order of the dendrogram; outlined squares are clusters";
    setLabel(this.node, `Distances between ${plural(group.width, "channel")}, ${order}`);
    this.surface.draw();
  }

  /** Colour every pair once; only the squares on top move with the threshold. */
  paint() {
    const { leaves } = treeOf(this.group), n = Math.min(leaves.length, MOST_CELLS);
    this.units = Array.from({ length: n }, (_, i) => leaves[Math.floor((i * leaves.length) / n)]);
    this.distances = distancesOf(this.group, this.units);
    const colors = ramp(["heat-near", "heat-close", "heat-middle", "heat-far"].map(ink));
    this.image = el("canvas", { width: n, height: n });
    const context = this.image.getContext("2d"), pixels = context.createImageData(n, n);
    this.distances.forEach((distance, i) => {
      const [r, g, b] = colors[Math.round(255 * toPosition(distance))];
      pixels.data.set([r, g, b, 255], 4 * i);
    });
    context.putImageData(pixels, 0, 0);
    this.scaled = null;
  }

  /** The image at the size of the screen, kept: scaling it at every step would cost more than all the rest. */
  fitted(size) {
    const side = Math.round(size * this.surface.density);
    if (!this.scaled || this.scaled.width !== side) {
      this.scaled = el("canvas", { width: side, height: side });
      const context = this.scaled.getContext("2d");
      context.imageSmoothingEnabled = this.units.length > side;
      context.drawImage(this.image, 0, 0, side, side);
    }
    return this.scaled;
  }

  draw(context, width) {
    if (!this.group) return;
    const size = width - AXIS;
    context.drawImage(this.fitted(size), AXIS, 0, size, size);
    this.outline(context, size);
  }

  /** Consecutive leaves with the same representative form a square. */
  outline(context, size) {
    const { leaves } = treeOf(this.group), cell = size / leaves.length;
    context.strokeStyle = ink("square");
    context.lineWidth = 1.5;
    context.beginPath();
    for (let start = 0, end = 1; end <= leaves.length; end++) {
      const kept = this.representative[leaves[start]];
      if (end < leaves.length && kept >= 0 && this.representative[leaves[end]] === kept) continue;
      const side = (end - start) * cell;
      if (end - start > 1) context.rect(AXIS + start * cell, start * cell, side, side);
      start = end;
    }
    context.stroke();
  }

  explain(x, y, event) {
    const size = this.surface.width - AXIS, n = this.units.length;
    const column = Math.floor(((x - AXIS) / size) * n), line = Math.floor((y / size) * n);
    if (column < 0 || line < 0 || column >= n || line >= n) return tip.hide();
    const i = this.units[line], j = this.units[column];
    const together = i !== j && this.representative[i] === this.representative[j] && this.representative[i] >= 0;
    return tip.show([`channels ${i} and ${j}`, `distance ${short(this.distances[line * n + column])}`,
      together ? `same cluster, represented by channel ${this.representative[i]}` : ""], event.clientX, event.clientY);
  }
}
