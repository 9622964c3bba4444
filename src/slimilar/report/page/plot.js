// Shared by all drawings: colours of the theme, and canvases that are sharp on every screen.

let inks = new Map();

/** A colour of the style sheet, by name. */
function ink(name) {
  if (!inks.has(name)) inks.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return inks.get(name);
}

function forgetInks() { inks = new Map(); }

/** A canvas that fills its box and is drawn again when that changes. */
class Surface {
  /** `tall` gives the height of the canvas for its width. */
  constructor(label, tall, draw) {
    this.canvas = el("canvas", { role: "img", label });
    this.tall = tall;
    this.onDraw = draw;
    this.width = 0;
    new ResizeObserver(() => this.fit()).observe(this.canvas);
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const height = Math.round(this.tall(width)), density = Math.min(2, devicePixelRatio || 1);
    if (width !== this.width || density !== this.density) {
      Object.assign(this, { width, height, density });
      this.canvas.width = width * density;
      this.canvas.height = height * density;
      this.canvas.style.height = `${height}px`;
    }
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const context = this.canvas.getContext("2d");
    context.setTransform(this.density, 0, 0, this.density, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.onDraw(context, this.width, this.height);
  }

  /** Call back with the place of the pointer, in the canvas's own pixels, while it is pressed. */
  onDrag(callback) {
    const move = (event) => {
      if (!event.buttons) return;
      const box = this.canvas.getBoundingClientRect();
      callback(event.clientX - box.left, event.clientY - box.top);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    this.canvas.addEventListener("pointermove", move);
  }

  /** Call back with the place of the pointer while it is above. */
  onHover(callback, leave) {
    this.canvas.addEventListener("pointermove", (event) => callback(event.offsetX, event.offsetY, event));
    this.canvas.addEventListener("pointerleave", leave);
  }
}

/** Blend from one hex colour to another. */
function blend(from, to, share) {
  const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const a = parse(from), b = parse(to);
  return a.map((value, i) => Math.round(value + (b[i] - value) * share));
}

/** 256 colours through some stops. */
function ramp(stops) {
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at));
    return blend(stops[k], stops[k + 1], at - k);
  });
}

// For the largest clusters, after Okabe and Ito: told apart by all kinds of colour vision, and none is the blue
// of a channel that is a cluster by itself.
const CLUSTER_INKS = ["#e69f00", "#009e73", "#cc79a7", "#d55e00", "#8b6fd0", "#b8a500", "#56b4e9"];

const tip = {
  show(lines, x, y) {
    const box = byId("tip");
    box.replaceChildren(...lines.filter(Boolean).map((line, i) => el(i ? "span" : "b", {}, line)));
    box.hidden = false;
    const left = Math.max(8, Math.min(x + 14, innerWidth - box.offsetWidth - 8));
    const below = y + 18 + box.offsetHeight < innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${below ? y + 18 : Math.max(8, y - box.offsetHeight - 12)}px`;
  },
  hide() { byId("tip").hidden = true; },
};
