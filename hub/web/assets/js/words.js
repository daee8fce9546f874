// Long texts that are not ours: shown as they are, the whole on demand, and copied.
import { announce, el, replace } from "./dom.js";
import { number, t, visible } from "./text.js";
import { maxPassage, maxShown } from "./limits.js";

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain http away from this machine: browsers keep their clipboard from such pages.
  const field = el("textarea", { class: "unseen", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  const ok = document.execCommand("copy");
  field.remove();
  if (!ok) throw new Error("copy");
}

/** A button that copies what text() says. */
export function copyButton(name, text) {
  const label = t("copy");
  const b = el("button", { type: "button", class: "quiet", "aria-label": `${label}: ${name}` }, label);
  b.addEventListener("click", async () => {
    let said = t("copied");
    try {
      await copy(text());
    } catch {
      said = t("copy.failed");
    }
    replace(b, said);
    announce(said);
    setTimeout(() => replace(b, label), 2000);
  });
  return b;
}

/** A text with its name, a button to copy it and, if it is long, one to show the rest. */
export function textBox(name, text) {
  const long = text.length > maxShown;
  const pre = el("pre", { class: "said", dir: "auto", tabindex: "0", role: "region", "aria-label": name }, long ? text.slice(0, maxShown) : text);
  const more = long && el("button", { type: "button", on: { click: () => {
    replace(pre, text);
    more.remove();
    pre.focus();
  } } }, t("text.all", { count: number(text.length) }));
  return el("section", null, el("div", { class: "head" }, el("h2", null, name), copyButton(name, () => text)), pre, more);
}

/** A text among others, cut where it is long, with a button for the whole. */
export function passage(text) {
  const pre = el("pre", { class: "words", dir: "auto" });
  const cut = text.length > maxPassage;
  pre.textContent = cut ? visible(text.slice(0, maxPassage)) + "…" : visible(text);
  const more = cut && el("button", { type: "button", class: "quiet", on: { click: () => {
    pre.textContent = visible(text);
    more.remove();
  } } }, t("words.whole"));
  return [pre, more];
}
