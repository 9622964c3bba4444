// The line that gives the widths on the screen, for a shell and for Python: what was asked for, as long as nothing else was
// chosen on the page; a threshold after that.

/** Quote for a POSIX shell, only where it is needed. */
function quoteShell(text) {
  return /^[A-Za-z0-9_.\/:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A Python string literal: JSON's escapes are Python's too. */
function quotePython(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .replace(/\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})/g, (_, high, low) => {
      const code = (parseInt(high, 16) - 0xd800) * 0x400 + parseInt(low, 16) - 0xdc00 + 0x10000;
      return `\\U${code.toString(16).padStart(8, "0")}`;
    });
}

// The shortest text that reads back as the same double, in both languages.
const exact = (number) => String(number);

/** The threshold with the fewest digits that gives the same widths. */
function briefest(threshold, sameWidths) {
  for (let digits = 3; digits < 17; digits++) {
    const candidate = Number(threshold.toPrecision(digits));
    if (candidate <= 1 && sameWidths(candidate)) return candidate;
  }
  return threshold;
}

function sameSteps(network, state, other) {
  const wanted = network.steps(state);
  return network.steps(other).every((n, g) => n === wanted[g]);
}

function briefThreshold(network, state) {
  return exact(briefest(state.threshold, (threshold) => sameSteps(network, state, { ...state, threshold })));
}

function ownThresholds(network, state) {
  return [...state.own].sort(([a], [b]) => a - b).map(([g, threshold]) => [
    network.groups[g].name,
    briefest(threshold, (t) => sameSteps(network, state, { ...state, own: new Map(state.own).set(g, t) })),
  ]);
}

/** What to ask for to get a state: { kind, amount, roundTo, own: [[name, threshold], ...] }. */
function goalOf(network, state) {
  const amount = briefThreshold(network, state);
  return { kind: "threshold", amount, roundTo: state.roundTo, own: ownThresholds(network, state) };
}

/** The same out of the target that the page was written with. */
const askedGoal = ({ kind, amount, round_to: roundTo, thresholds }) =>
  ({ kind, amount: String(amount), roundTo, own: Object.entries(thresholds) });

const AGAIN = "  # measures again: widths may differ a little";

function shellCommand(goal, source) {
  const words = ["slimilar prune", source || "MODEL", `--${goal.kind}`, quoteShell(goal.amount)];
  if (goal.roundTo !== "auto") words.push("--round-to", String(goal.roundTo));
  for (const [name, threshold] of goal.own) words.push("--layer", quoteShell(`${name}=${exact(threshold)}`));
  return words.join(" ") + (goal.kind === "latency" ? AGAIN : "");
}

function pythonCommand(network, goal, criterion) {
  const amount = Number.isNaN(Number(goal.amount)) ? quotePython(goal.amount) : goal.amount;
  const words = ["model", "x", `${goal.kind}=${amount}`];
  if (goal.roundTo !== "auto") words.push(`round_to=${goal.roundTo}`);
  if (criterion !== "similarity") words.push(`criterion=${quotePython(criterion)}`);
  const own = goal.own.map(([name, t]) => `${quotePython(name)}: ${exact(t)}`);
  if (own.length) words.push(`thresholds={${own.join(", ")}}`);
  const input = network.rows.find((row) => row.kind === "input");
  const shape = input ? input.shape.join(", ") : "1, 3, 224, 224";
  return [
    "import slimilar", "import torch", "", "# model: your trained network, in eval mode",
    `x = torch.zeros(${shape})`, `result = slimilar.prune(${words.join(", ")})${goal.kind === "latency" ? AGAIN : ""}`,
  ].join("\n");
}

/** Put text on the clipboard; from a file on disk some browsers only allow the old way. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { value: text, className: "unseen", readOnly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
