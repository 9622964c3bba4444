// What is on the screen as one image to keep: numbers, curve, and the skyline of the network.

const POSTER = { width: 1400, height: 820, margin: 56 };

/** Draw the poster and return its canvas. */
function drawPoster(network, title, state, result, curve) {
  const { width, height, margin } = POSTER, scale = 2;
  const canvas = el("canvas", { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = ink("paper");
  context.fillRect(0, 0, width, height);
  posterHead(context, title, state, network.before, result);
  posterCurve(context, curve, state, result, { x: width - margin - 470, y: margin, width: 470, height: 220 });
  posterSkyline(context, network, result, { x: margin, y: 370, width: width - 2 * margin, height: 370 });
  return canvas;
}

function posterText(context, text, x, y, font, color, align = "left") {
  context.font = `${font} ${ink("sans")}`;
  context.fillStyle = ink(color);
  context.textAlign = align;
  context.textBaseline = "alphabetic";
  context.fillText(text, x, y);
}

function posterHead(context, title, state, before, result) {
  const { margin } = POSTER;
  posterText(context, title, margin, margin + 26, "600 34px", "ink");
  const rounding = state.roundTo === 1 ? "" : `, widths rounded to ${state.roundTo === "auto" ? "16 or less" : state.roundTo}`;
  const own = state.own.size ? `, ${plural(state.own.size, "layer")} with a custom threshold` : "";
  posterText(context, `threshold ${short(state.threshold)}${rounding}${own}`, margin, margin + 60, "18px", "muted");
  [["FLOPs", "flops"], ["parameters", "params"], ["channels", "channels"]].forEach(([word, kind], i) => {
    const x = margin + i * 240;
    posterText(context, saved(before[kind], result[kind]), x, margin + 150, "600 40px", "kept");
    posterText(context, word, x, margin + 180, "18px", "ink");
    const number = kind === "channels" ? grouped : human;
    posterText(context, `${number(before[kind])} → ${number(result[kind])}`, x, margin + 206, "16px", "muted");
  });
}

function posterCurve(context, { samples, network }, state, result, box) {
  const place = (threshold, share) => [box.x + toPosition(threshold) * box.width, box.y + (1 - share) * box.height];
  context.strokeStyle = ink("line");
  context.lineWidth = 1;
  context.strokeRect(box.x, box.y, box.width, box.height);
  for (const [kind, dash, color] of [["params", [8, 5], "gone"], ["channels", [2, 4], "muted"], ["flops", [], "kept"]]) {
    context.setLineDash(dash);
    context.strokeStyle = ink(color);
    context.lineWidth = kind === "flops" ? 3 : 2;
    context.beginPath();
    samples.forEach((sample) => context.lineTo(...place(sample.threshold, sample.result[kind] / network.before[kind])));
    context.stroke();
  }
  context.setLineDash([]);
  context.beginPath();
  context.arc(...place(state.threshold, result.flops / network.before.flops), 7, 0, 2 * Math.PI);
  context.fillStyle = ink("kept");
  context.fill();
  const caption = "kept at each threshold: FLOPs (solid), parameters (dashed), channels (dotted)";
  posterText(context, caption, box.x, box.y + box.height + 24, "12.5px", "muted");
}

/** One column per layer: its full width behind, what is kept in front. */
function posterSkyline(context, network, result, box) {
  const rows = network.rows.filter((row) => row.vector !== undefined);
  const step = box.width / rows.length, tallest = Math.sqrt(Math.max(...rows.map((row) => row.width)));
  rows.forEach((row, i) => {
    const full = (Math.sqrt(row.width) / tallest) * box.height, kept = full * (result.widths[row.vector] / row.width);
    const x = box.x + i * step, wide = Math.max(1, step * 0.78);
    context.globalAlpha = 0.35;
    context.fillStyle = ink(row.reason ? "stays" : "gone");
    context.fillRect(x, box.y + box.height - full, wide, full);
    context.globalAlpha = 1;
    context.fillStyle = ink(row.reason ? "stays" : "kept");
    context.fillRect(x, box.y + box.height - kept, wide, kept);
  });
  const caption = "layers in order: kept, removed (pale), cannot be pruned (grey); height is proportional to √channels";
  posterText(context, caption, box.x, box.y + box.height + 28, "15px", "muted");
  posterText(context, "slimilar", box.x + box.width, box.y + box.height + 28, "600 15px", "muted", "right");
}
