// Lengths of time as people write them: 90s, 30m, 1h30m, 7d.

const units = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/** In milliseconds; 0 of an empty text, null of what is none. */
export function millis(text) {
  const rest = text.trim().toLowerCase();
  if (!rest) return 0;
  if (!/^(\d+(\.\d+)?\s*(ms|min|s|m|h|d)\s*)+$/.test(rest)) return null;
  let sum = 0;
  for (const [, n, , unit] of rest.matchAll(/(\d+(\.\d+)?)\s*(ms|min|s|m|h|d)/g)) sum += Number(n) * units[unit];
  return Math.round(sum);
}
