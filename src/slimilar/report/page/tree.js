// The dendrogram of one layer: merges below the threshold, merges above it, and the line between them.

const AXIS = 34; // room for the heights, left of tree and heat map alike
const TREE_TICKS = [0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1];

class TreeView {
  constructor(onCut) {
    this.surface = new Surface("Dendrogram", (width) => Math.max(150, 0.46 * width), (...given) => this.draw(...given));
    this.surface.canvas.classList.add("tree");
    this.surface.onDrag((_, y) => onCut(toThreshold(this.position(y))));
  }

  get node() { return this.surface.canvas; }

  show(group, steps, threshold) {
    Object.assign(this, { group, steps, threshold });
    const cut = `${plural(steps, "merge")} below ${short(threshold)}`;
    setLabel(this.node, `Dendrogram of ${plural(group.width, "channel")}; ${cut}`);
    this.surface.draw();
  }

  /** The tallest merge fills the drawing; a cut above it stays at the top. */
  get top() {
    const { heights } = this.group;
    return Math.min(1, toPosition(heights.length ? heights[heights.length - 1] : 1) * 1.06);
  }

  y(height, size) { return size - 4 - Math.min(1, toPosition(height) / this.top) * (size - 12); }

  position(y) { return this.top * Math.max(0, Math.min(1, (this.surface.height - 4 - y) / (this.surface.height - 12))); }

  draw(context, width, height) {
    if (!this.group) return;
    const { forks } = treeOf(this.group);
    const x = (place) => AXIS + (place / this.group.width) * (width - AXIS);
    this.drawAxis(context, width, height);
    context.lineWidth = Math.max(0.5, Math.min(1.2, 140 / this.group.width));
    // Merges above the threshold first, so that those below are never hidden.
    this.drawForks(context, forks.slice(this.steps), x, height, ink("faint"));
    this.drawForks(context, forks.slice(0, this.steps), x, height, ink("gone"));
    this.drawCut(context, width, height);
  }

  drawAxis(context, width, height) {
    context.font = `11px ${ink("sans")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.strokeStyle = ink("line");
    context.fillStyle = ink("muted");
    context.lineWidth = 1;
    for (const tick of TREE_TICKS) {
      const y = this.y(tick, height);
      if (toPosition(tick) > this.top) break;
      if (height < 190 && tick === 0.01) continue;
      context.fillText(String(tick), AXIS - 7, Math.max(7, Math.min(height - 6, y)));
      context.beginPath();
      context.moveTo(AXIS, y);
      context.lineTo(width, y);
      context.stroke();
    }
  }

  drawForks(context, forks, x, height, color) {
    // Hundreds of stems down to zero would be one grey wall: of those only the upper end is drawn.
    const most = this.group.width > 96 ? 12 : height;
    const foot = (top, from) => Math.min(this.y(from, height), from ? height : top + most);
    context.strokeStyle = color;
    context.beginPath();
    for (const { a, aTop, b, bTop, height: at } of forks) {
      const top = this.y(at, height);
      if (a === null) { // no representative: a stem of its own
        context.moveTo(x(b), this.y(0, height));
        context.lineTo(x(b), top);
        continue;
      }
      context.moveTo(x(a), foot(top, aTop));
      context.lineTo(x(a), top);
      context.lineTo(x(b), top);
      context.lineTo(x(b), foot(top, bTop));
    }
    context.stroke();
  }

  drawCut(context, width, height) {
    const y = this.y(this.threshold, height);
    context.strokeStyle = context.fillStyle = ink("ink");
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(AXIS, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(width - 8, y, 5, 0, 2 * Math.PI);
    context.fill();
  }
}
