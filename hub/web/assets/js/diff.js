// What changed from one list of texts to another: a longest common subsequence, first of
// lines and then of the words within a line that was changed. Bounded: what would take
// more than maxDiffCells comparisons in all counts as replaced.
import { lang } from "./text.js";
import { maxDiffCells } from "./limits.js";

/**
 * Steps [{kind: "same" | "removed" | "added", value}] that lead from a to b. What is left
 * of the comparisons is in budget.cells, which several calls may share.
 */
export function compare(a, b, budget = { cells: maxDiffCells }) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const same = (value) => ({ kind: "same", value });
  return [
    ...a.slice(0, head).map(same),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail), budget),
    ...a.slice(a.length - tail).map(same),
  ];
}

function middle(a, b, budget) {
  const removed = a.map((value) => ({ kind: "removed", value }));
  const added = b.map((value) => ({ kind: "added", value }));
  if (!a.length || !b.length || a.length * b.length > budget.cells) return [...removed, ...added];
  budget.cells -= a.length * b.length;
  // left[i][j] is the length of what a from i and b from j have in common.
  const wide = b.length + 1;
  const left = new Uint32Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      left[i * wide + j] = a[i] === b[j] ? left[(i + 1) * wide + j + 1] + 1 : Math.max(left[(i + 1) * wide + j], left[i * wide + j + 1]);
    }
  }
  const steps = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      steps.push({ kind: "same", value: a[i] });
      i++;
      j++;
    } else if (left[(i + 1) * wide + j] >= left[i * wide + j + 1]) {
      steps.push(removed[i++]);
    } else {
      steps.push(added[j++]);
    }
  }
  return [...steps, ...removed.slice(i), ...added.slice(j)];
}

const segmenter = "Segmenter" in Intl ? new Intl.Segmenter(lang, { granularity: "word" }) : null;

/** The words of a text and what stands between them; Chinese has no blanks. */
export function words(text) {
  return segmenter ? Array.from(segmenter.segment(text), (s) => s.segment) : text.split(/(\s+)/);
}

const alike = 0.4; // the part in common from which two lines count as one that changed

/**
 * The steps between two lists of lines. A line that only changed is one step of kind
 * "changed" with the steps between its words.
 */
export function compareLines(a, b) {
  const budget = { cells: maxDiffCells };
  const steps = compare(a, b, budget);
  const out = [];
  for (let i = 0; i < steps.length; ) {
    if (steps[i].kind === "same") {
      out.push(steps[i++]);
      continue;
    }
    const run = { removed: [], added: [] };
    for (; i < steps.length && steps[i].kind !== "same"; i++) run[steps[i].kind].push(steps[i].value);
    out.push(...pairs(run.removed, run.added, budget));
  }
  return out;
}

// pairs finds, in the order of the lines, which were changed and which are new or gone.
function pairs(removed, added, budget) {
  const out = [];
  const split = new Map(); // line → words
  const wordsOf = (v) => split.get(v) || split.set(v, words(v)).get(v);
  let from = 0;
  for (const value of removed) {
    let hit = -1;
    let steps = null;
    for (let j = from; j < added.length && j < from + nearby && budget.cells > 0; j++) {
      budget.cells -= value.length + added[j].length; // to split them
      const between = compare(wordsOf(value), wordsOf(added[j]), budget);
      const common = between.filter((s) => s.kind === "same").reduce((n, s) => n + s.value.trim().length, 0);
      if (common >= alike * Math.max(value.length, added[j].length)) {
        [hit, steps] = [j, between];
        break;
      }
    }
    if (hit < 0) {
      out.push({ kind: "removed", value });
      continue;
    }
    for (; from < hit; from++) out.push({ kind: "added", value: added[from] });
    out.push({ kind: "changed", steps });
    from = hit + 1;
  }
  for (; from < added.length; from++) out.push({ kind: "added", value: added[from] });
  return out;
}

const nearby = 8; // lines that one is compared with word for word
