// Shortcuts: single keys and sequences such as "g f". They rest while somebody types.
import { byId, el, replace } from "./dom.js";
import { t } from "./text.js";

const shortcuts = []; // {keys, text, fn}
let pending = "";
let pendingAt = 0;

const offKey = "mesh-keys-off";
let off = false; // the reader wants none: speech input and slips press keys too
try {
  off = localStorage.getItem(offKey) === "yes";
} catch {
  // no storage
}

function turn(on) {
  off = !on;
  pending = "";
  try {
    if (off) localStorage.setItem(offKey, "yes");
    else localStorage.removeItem(offKey);
  } catch {
    // it holds for this page
  }
}

/** keys is "?" or "g f"; text says what it does, "" of one that another's text tells of. */
export function shortcut(keys, text, fn) {
  shortcuts.push({ keys, text, fn });
}

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function pressed(e) {
  if (off || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.defaultPrevented || typing(e.target) || document.querySelector("dialog[open]")) {
    pending = "";
    return;
  }
  const now = Date.now();
  const keys = pending && now - pendingAt < 1500 ? pending + " " + e.key : e.key;
  const hit = shortcuts.find((s) => s.keys === keys);
  if (hit) {
    pending = "";
    e.preventDefault();
    hit.fn();
    return;
  }
  pending = shortcuts.some((s) => s.keys.startsWith(e.key + " ")) ? e.key : "";
  pendingAt = now;
}

function help() {
  const dialog = el("dialog", { "aria-labelledby": "keys-title" });
  const keysOf = (s) => s.keys.split(" ").flatMap((k, i) => [i ? ` ${t("keys.then")} ` : "", el("kbd", null, k)]);
  replace(
    dialog,
    el("div", { class: "head" },
      el("h2", { id: "keys-title" }, t("keys.title")),
      el("button", { type: "button", on: { click: () => dialog.close() } }, t("close"))),
    el("table", null, el("tbody", null, shortcuts.filter((s) => s.text).map((s) => el("tr", null, el("th", { scope: "row" }, keysOf(s)), el("td", null, s.text))))),
    el("label", { class: "check" }, el("input", { type: "checkbox", id: "keys-on", checked: !off, on: { change: (e) => turn(e.target.checked) } }), el("span", null, t("keys.on"))),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Begins to listen. */
export function start() {
  for (const a of document.querySelectorAll("nav.places a[data-key]")) {
    shortcut("g " + a.dataset.key, t("keys.go", { page: a.firstChild.textContent }), () => a.click());
  }
  const search = byId("search");
  if (search) shortcut("/", t("keys.search"), () => search.focus());
  shortcut("?", t("keys.help"), help);
  addEventListener("keydown", pressed);
  const button = byId("help");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", help);
  }
}
