// Texts in the reader's language, and numbers and times as it writes them.
import { block } from "./dom.js";
import { maxWord } from "./limits.js";

const catalogue = block("catalogue");
export const lang = document.documentElement.lang || "en";

/** A text; args fill in what it leaves open as {name}. An unknown key is its own text. */
export function t(key, args) {
  const text = catalogue[key] ?? key;
  return args ? text.replace(/\{(\w+)\}/g, (whole, name) => (name in args ? String(args[name]) : whole)) : text;
}

/** Whether there is a text. */
export const has = (key) => key in catalogue;

/** A word that is not ours, in the reader's language if there is a text for it. */
export const wordOf = (prefix, value) => (has(prefix + value) ? t(prefix + value) : line(value, maxWord));

const numbers = new Intl.NumberFormat(lang);
const times = new Intl.DateTimeFormat(lang, { dateStyle: "short", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" });
const relative = new Intl.RelativeTimeFormat(lang, { numeric: "auto", style: "short" });

export const number = (n) => numbers.format(n);

const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function split(seconds) {
  for (const [unit, size] of units) {
    if (Math.abs(seconds) >= size || unit === "second") return [unit, Math.trunc(seconds / size)];
  }
}

/** A point in time; "" of none. */
export function time(at) {
  const d = new Date(at);
  return at && !Number.isNaN(d.getTime()) ? times.format(d) : "";
}

/** The same to the second. */
export function exactTime(at) {
  const d = new Date(at);
  return at && !Number.isNaN(d.getTime()) ? exact.format(d) : "";
}

/** How long ago that is, by the hub's clock if now is given. */
export function ago(at, now = Date.now()) {
  const [unit, n] = split((new Date(at).getTime() - now) / 1000);
  return relative.format(n, unit);
}

/** A length of time, in milliseconds. */
export function duration(ms) {
  const [unit, n] = split(ms / 1000);
  return new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "short" }).format(n);
}

/** A size in bytes. */
export function bytes(n) {
  const names = ["byte", "kilobyte", "megabyte", "gigabyte"];
  let i = 0;
  for (; n >= 1000 && i < names.length - 1; i++) n /= 1000;
  return new Intl.NumberFormat(lang, { style: "unit", unit: names[i], unitDisplay: "short", maximumFractionDigits: n < 10 && i ? 1 : 0 }).format(n);
}

// Characters that do not show, or have what is beside them show in another order.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A text that is not ours: what it hides is shown as an escape. */
export function visible(text) {
  return String(text ?? "").replace(/\r\n/g, "\n").replace(hidden, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** A line of a text that is not ours: bounded, and nothing in it hides. */
export function line(text, max) {
  const chars = Array.from(visible(String(text ?? "").slice(0, 2 * max)));
  return chars.length > max ? chars.slice(0, max - 1).join("") + "…" : chars.join("");
}
