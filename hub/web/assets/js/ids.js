// Ids of tasks, <name>-<milliseconds in base 36>-<4 of [0-9a-z]>, as meshctl mints them
// (semantics 4): made before the first send and used again in every repeat.

const perMilli = 64; // ids that share a millisecond; then the time part runs ahead
const suffixes = 36 ** 4;
const maxName = 48;

let ms = 0;
const used = new Set(); // suffixes of that millisecond

function random() {
  const n = new Uint32Array(1);
  crypto.getRandomValues(n);
  return n[0] % suffixes;
}

/** A new id; this page never makes the same twice. */
export function mint(name) {
  const now = Date.now();
  if (now > ms) {
    ms = now;
    used.clear();
  } else if (used.size >= perMilli) {
    ms++;
    used.clear();
  }
  let suffix = random();
  while (used.has(suffix)) suffix = (suffix + 1) % suffixes;
  used.add(suffix);
  const begin = name.replace(/[^A-Za-z0-9._-]/g, "-").replace(/^[-._]+/, "").slice(0, maxName) || "node";
  return `${begin}-${ms.toString(36)}-${suffix.toString(36).padStart(4, "0")}`;
}
