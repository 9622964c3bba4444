// Small things that every part uses. Text from the network only ever becomes a text node, never markup.

const byId = (id) => document.getElementById(id);

/** Make an element; children that are not elements become text. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "label") setLabel(node, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Make an SVG element. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** What a screen reader says for a node. */
function setLabel(node, text) { node.setAttribute("aria-label", text); }

/** Set text only where it changed: an untouched node costs no layout. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Numbers from base64 of their little-endian bytes. */
function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Type(bytes.buffer);
}

/** The smallest double above x >= 0: a threshold just above a height takes that step and nothing more. */
function nextUp(x) {
  const number = new Float64Array([x]);
  new BigInt64Array(number.buffer)[0] += 1n;
  return number[0];
}

/** How many entries of a rising array are below x. */
function countBelow(rising, x) {
  let low = 0, high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** 8.21 G, 25.56 M, 512. */
function human(number) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= size) return `${(number / size).toFixed(2)} ${unit}`;
  }
  return number.toFixed(0);
}

const grouped = new Intl.NumberFormat("en").format;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const saved = (before, after) => (before === after ? "±0 %" : `${after > before ? "+" : "−"}${percent(Math.abs(1 - after / before))}`);
const short = (threshold) => String(Number(threshold.toPrecision(4)));
const plural = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;

// Most of what happens, happens at small thresholds: positions go with the square root.
const toPosition = (threshold) => Math.sqrt(Math.max(0, threshold));
const toThreshold = (position) => Math.round(position * position * 1e4) / 1e4;
const TICKS = [0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1];

/** A file for the user to keep. */
function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1e4);
}
