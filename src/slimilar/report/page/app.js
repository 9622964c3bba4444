// The page: one state, and one update of everything that shows it.

const data = JSON.parse(byId("data").textContent);
const network = new Network(data);
const ROUNDINGS = ["auto", ...new Set([1, 2, 4, 8, 16, 32, ...[data.state.round_to].filter(Number)])].sort((a, b) => a - b);

/** The state in which the page opened. */
function openingState() {
  const index = new Map(network.groups.map(({ name }, g) => [name, g]));
  const own = new Map(Object.entries(data.state.thresholds).map(([name, t]) => [index.get(name), t]));
  return { threshold: data.state.threshold, roundTo: data.state.round_to, own };
}

let state = openingState();
let result = network.measure(state);
let selected = null;
let language = data.source === null ? "python" : "shell";
let waiting = false;

const flowView = new FlowView(network, select);
const curveView = new CurveView(network, data.points, (threshold) => change({ threshold }));
const layerView = new LayerView(network, { override, read: readThreshold, select, close: () => select(null) });
const tableView = new TableView(network);

// --- changing -------------------------------------------------------------------------------------------------

/** Take over part of a state; everything on the screen follows before the next frame. */
function change(part, calm = false) {
  state = { ...state, ...part };
  document.body.classList.toggle("calm", calm);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; update(); });
}

/** Set a custom threshold for one layer; null returns it to the global one. */
function override(g, threshold) {
  const own = new Map(state.own);
  if (threshold === null) own.delete(g);
  else own.set(g, threshold);
  change({ own });
}

function select(index) {
  const last = selected;
  selected = index;
  layerView.open(selected);
  update();
  if (selected === null && last !== null && flowView.items[last].button) flowView.focus(flowView.items[last]);
  else if (selected !== null && matchMedia("(max-width: 60rem)").matches) byId("layer").focus();
}

/** A number between 0 and 1 out of a text field; anything else puts the old one back. */
function readThreshold(input, old) {
  const number = Number(input.value.trim().replace(",", "."));
  const good = input.value.trim() !== "" && number >= 0 && number <= 1;
  input.setAttribute("aria-invalid", String(!good));
  if (!good) input.value = short(old);
  // A field shows fewer digits than there are: leaving it as it is must change nothing.
  return good && input.value.trim() !== short(old) ? number : old;
}

function aim() {
  const kind = byId("budget-kind").value, text = byId("budget").value;
  const whole = network.before[kind], limit = parseBudget(text, whole);
  if (!text.trim()) return note("");
  if (Number.isNaN(limit)) return note(`“${text}” is not a budget: enter a share (50%) or a number (4.4G).`, true);
  const { threshold, smallest } = network.meet(kind, limit, state);
  if (threshold === undefined) {
    const share = percent(smallest / whole);
    return note(`The smallest reachable value is ${human(smallest)} (${share} of the original).`, true);
  }
  note(`Threshold ${short(threshold)} is the smallest that meets ${human(limit)}.`);
  return change({ threshold }, true);
}

function note(text, wrong = false) {
  setText(byId("budget-note"), text);
  byId("budget").setAttribute("aria-invalid", String(wrong));
}

// --- showing --------------------------------------------------------------------------------------------------

function update() {
  result = network.measure(state);
  showNumbers();
  flowView.update(state, result, selected);
  curveView.update(state, result);
  layerView.update(state, result);
  tableView.update(state, result);
  showCommand();
}

function showNumbers() {
  const slider = byId("slider"), { before } = network;
  slider.value = String(Math.round(1000 * toPosition(state.threshold)));
  slider.style.setProperty("--at", toPosition(state.threshold));
  const share = percent(result.flops / before.flops);
  slider.setAttribute("aria-valuetext", `${short(state.threshold)}, keeps ${share} of FLOPs`);
  if (document.activeElement !== byId("threshold")) byId("threshold").value = short(state.threshold);
  byId("round").value = String(state.roundTo);
  setText(byId("brief"), `${saved(before.flops, result.flops)} FLOPs`);
  tiles();
  if (!network.groups.length) return sentence(["No layer of this model can be pruned."]);
  return sentence([
    ...whatLeaves(), grouped(result.channels), " of ", grouped(network.channels), " channels are kept, with ", share,
    " of the FLOPs.",
  ]);
}

const GOALS = {
  flops: "a FLOPs budget", macs: "a MACs budget", params: "a parameter budget", latency: "a latency budget",
  ratio: "a pruning ratio", quantile: "a quantile",
};

/** Why the widths on the screen are what they are, words and numbers in turn. */
function whatLeaves() {
  if (asAsked() && data.target.kind !== "threshold") {
    return [`Chosen for ${GOALS[data.target.kind]} of `, String(data.target.amount), ": "];
  }
  const [which, action] = network.merges ? ["Channels closer than ", " are merged"] : ["Channels ranked below ", " are removed"];
  const own = state.own.size ? `, by thresholds of their own in ${plural(state.own.size, "layer")}` : "";
  return [which, short(state.threshold), `${action}${own}: `];
}

/** Whether the screen shows what the page was written for, with nothing else chosen since. */
function asAsked() {
  const { threshold, roundTo, own } = openingState();
  return data.target !== null && state.threshold === threshold && state.roundTo === roundTo &&
    state.own.size === own.size && [...own].every(([g, t]) => state.own.get(g) === t);
}

/** Words and numbers in turn; the numbers stand out and keep their width. */
function sentence(parts) {
  const box = byId("sentence");
  if (box.childNodes.length !== parts.length) {
    box.replaceChildren(...parts.map((part, i) => (i % 2 ? el("b", {}, part) : part)));
  }
  parts.forEach((part, i) => setText(box.childNodes[i], part));
}

const TILES = [["FLOPs", "flops"], ["MACs", "macs"], ["parameters", "params"], ["prunable channels", "channels"]];

/** A number, what it was, and where there is room for it a bar. */
function tile(word, ...more) {
  return el("div", {}, el("dt", {}, word), el("dd", {}, el("b"), el("span"), ...more));
}

function tiles() {
  const box = byId("tiles"), { before } = network;
  if (!box.children.length) box.append(...TILES.map(([word]) => tile(word, el("i", {}, el("i")))));
  TILES.forEach(([, kind], i) => {
    const [after, change, bar] = box.children[i].lastChild.children, share = result[kind] / Math.max(1, before[kind]);
    setText(after, kind === "channels" ? grouped(result.channels) : human(result[kind]));
    const of = kind === "channels" ? grouped(network.channels) : human(before[kind]);
    setText(change, result[kind] === before[kind] ? "unchanged" : `${saved(before[kind], result[kind])} of ${of}`);
    bar.firstChild.style.transform = `scaleX(${share})`;
  });
  if (data.latency) showLatency(box);
}

const brief = (milliseconds) => String(Number(milliseconds.toPrecision(3)));

/** Measured at the widths of the opening; elsewhere between other cuts, if times of some are known. */
function showLatency(box) {
  const { before, after, device, curve } = data.latency;
  if (box.children.length === TILES.length) box.append(tile("latency"));
  const [number, words] = box.lastChild.lastChild.children;
  const measured = sameWidths(openingState()), between = timeAt(curve, result.flops), where = device ? `, ${device}` : "";
  if (measured || between !== null) {
    const time = measured ? after : between;
    setText(number, `${measured ? "" : "≈ "}${brief(time)} ms`);
    const how = measured ? "" : ", interpolated by FLOPs";
    setText(words, `${saved(before, time)} of ${brief(before)} ms${how}${where}`);
  } else {
    setText(number, `${brief(before)} ms`);
    setText(words, "original; the pruned model was measured at its own cut");
  }
}

/** Milliseconds at some FLOPs, on the line between the two nearest cuts; null beyond those that are known. */
function timeAt(curve, flops) {
  const known = [...curve].sort((a, b) => a[0] - b[0]);
  const next = known.findIndex(([cost]) => cost >= flops);
  if (next < 0 || (next === 0 && known[0][0] !== flops)) return null;
  if (known[next][0] === flops) return known[next][1];
  const [[low, fast], [high, slow]] = [known[next - 1], known[next]];
  return fast + ((slow - fast) * (flops - low)) / (high - low);
}

function sameWidths(other) {
  const steps = network.steps(other);
  return steps.every((n, g) => n === result.steps[g]);
}

function showCommand() {
  const goal = asAsked() ? askedGoal(data.target) : goalOf(network, state);
  const text = language === "shell" ? shellCommand(goal, data.source) : pythonCommand(network, goal, data.criterion);
  if (byId("command").textContent !== text) byId("command").replaceChildren(...inOptions(text));
  byId("as-shell").setAttribute("aria-pressed", String(language === "shell"));
  byId("as-python").setAttribute("aria-pressed", String(language === "python"));
}

/** Let a long command break between its options, never within one; the text stays as it is. */
function inOptions(text) {
  return text.split(/( )(?=--)/).map((part) => (part === " " ? part : el("span", {}, part)));
}

// --- starting -------------------------------------------------------------------------------------------------

function say(text) { setText(byId("say"), text); }

async function copyCommand() {
  const done = await copyText(byId("command").textContent);
  setText(byId("copy"), done ? "Copied" : "Press Ctrl+C");
  say(done ? "Command copied" : "The browser does not allow copying");
  setTimeout(() => setText(byId("copy"), "Copy"), 1600);
}

const fileName = (ending) => `${data.title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "slimilar"}.${ending}`;

function saveTable() {
  download(fileName("csv"), new Blob([toCsv(tableRows(network, state, result))], { type: "text/csv" }));
}

function savePoster() {
  drawPoster(network, data.title, state, result, curveView).toBlob((blob) => download(fileName("png"), blob));
}

function listen() {
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  on("slider", "input", () => change({ threshold: toThreshold(byId("slider").value / 1000) }));
  on("threshold", "change", () => change({ threshold: readThreshold(byId("threshold"), state.threshold) }, true));
  on("budget-go", "click", aim);
  on("budget", "keydown", (event) => { if (event.key === "Enter") aim(); });
  on("controls", "submit", (event) => event.preventDefault());
  on("round", "change", () => change({ roundTo: Number(byId("round").value) || "auto" }, true));
  on("reset", "click", () => { byId("budget").value = ""; note(""); change(openingState(), true); });
  on("as-shell", "click", () => { language = "shell"; showCommand(); });
  on("as-python", "click", () => { language = "python"; showCommand(); });
  on("copy", "click", copyCommand);
  on("csv", "click", saveTable);
  on("png", "click", savePoster);
  addEventListener("scroll", () => tip.hide(), { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape" && selected !== null) select(null); });
}

const THEMES = ["auto", "light", "dark"];
const THEME_WORDS = { auto: ["◐ Auto", "system"], light: ["○ Light", "light"], dark: ["● Dark", "dark"] };

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

function setTheme(wish) {
  theme = wish;
  document.documentElement.dataset.theme = wish !== "auto" ? wish : systemIsDark.matches ? "dark" : "light";
  const [label, words] = THEME_WORDS[wish];
  setText(byId("theme"), label);
  setLabel(byId("theme"), `Colour theme: ${words}. Press to change`);
  forgetInks();
  layerView.update(state, result);
}

function startThemes() {
  setTheme("auto");
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  systemIsDark.addEventListener("change", () => setTheme(theme));
}

/** On a wide screen a layer is open from the start: the one that loses most. */
function openFirst() {
  if (!network.groups.length || matchMedia("(max-width: 60rem)").matches) return;
  const g = result.steps.indexOf(Math.max(...result.steps));
  const row = network.rows.findIndex((candidate) => candidate.group === g);
  if (row >= 0) select(row);
}

/** A name such as torchvision:mobilenet_v2, with places where a narrow screen may break it. */
function breakable(name) {
  const parts = name.match(/[^:/_.,]*[:/_.,]?/g).filter(Boolean);
  return parts.flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function start() {
  byId("title").replaceChildren(...breakable(data.title));
  const input = network.rows.find((row) => row.kind === "input");
  const layers = network.rows.filter((row) => row.vector !== undefined), whole = layers.filter((row) => row.reason);
  byId("subtitle").textContent = [
    `${plural(layers.length, "layer")}, ${whole.length} of which cannot be pruned`,
    input ? `input ${input.shape.join(" × ")}` : "", `criterion: ${data.criterion}`, data.note,
  ].filter(Boolean).join(" · ");
  byId("round").replaceChildren(...ROUNDINGS.map((n) => el("option", { value: n }, n === 1 ? "any" : String(n))));
  byId("ticks").replaceChildren(...TICKS.map((tick) => {
    const mark = el("span", {}, String(tick));
    mark.style.left = `${100 * toPosition(tick)}%`;
    return mark;
  }));
  if (data.source === null) byId("as-shell").hidden = true;
  byId("method").hidden = data.criterion !== "similarity";
  showMeasured(data.measured);
  listen();
  startThemes();
  // The column at the side sticks below the controls, however tall they are.
  const side = document.querySelector(".side");
  const fitSide = () => {
    document.documentElement.style.setProperty("--bar", `${byId("controls").offsetHeight}px`);
    side.classList.toggle("whole", side.scrollHeight >= byId("flow").offsetHeight);
  };
  const sizes = new ResizeObserver(fitSide);
  for (const id of ["controls", "flow", "layer"]) sizes.observe(byId(id));
  update();
  openFirst();
}

start();

// For tests: the functions that the page itself uses.
window.slimilar = {
  network, change, select, parseBudget,
  get state() { return state; },
  get result() { return result; },
  ready: performance.now(),
};
