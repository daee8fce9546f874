// Elements are made here and nowhere else: texts become text nodes and attributes go
// through setAttribute, so nothing that a node or an agent says is read as markup.

const svgNS = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, fn] of Object.entries(value)) node.addEventListener(event, fn);
    } else if (name === "data") {
      for (const [key, v] of Object.entries(value)) node.dataset[key] = v;
    } else if (name.startsWith("on") || name === "srcdoc" || name === "style") {
      throw new Error(`dom: ${name} is no attribute of ours`);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  put(node, children);
  return node;
}

function put(node, children) {
  for (const c of children.flat(Infinity)) {
    if (c === null || c === undefined || c === false) continue;
    node.append(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

/** el("p", {class: "hint", on: {click: fn}}, "text", child, …) */
export function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(svgNS, tag), props, children);
}

/** Replaces what is in an element; the keyboard keeps its place. */
export function replace(node, ...children) {
  holding(node, () => {
    node.textContent = "";
    put(node, children);
  });
}

const controls = "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary";
const nameOf = (node) => node.dataset.control || node.id || node.getAttribute("aria-label") || node.getAttribute("href");

/** Where a control is, for backTo once it may have gone. */
export function placeOf(node) {
  const around = [];
  for (let up = node.parentElement; up; up = up.parentElement) around.push(up);
  return { node, name: nameOf(node), around };
}

/**
 * Gives the focus back if it was lost with a control that went: to the control, to the
 * one of its name that came instead, or else to what is left nearest to it. A reader
 * who has gone elsewhere stays there.
 */
export function backTo(place) {
  const now = document.activeElement;
  if (now && now !== document.body) return;
  if (place.node.isConnected && !place.node.disabled) {
    place.node.focus({ preventScroll: true });
    return;
  }
  const root = place.around.find((v) => v.isConnected && (v.id === "main" || !v.closest("[hidden]"))) || byId("main");
  const left = [...root.querySelectorAll(controls)];
  const same = place.name && left.find((v) => nameOf(v) === place.name);
  standOn(same || (root.contains(byId("main")) ? byId("main") : left[0] || root));
}

/** Focuses also what Tab does not reach. */
export function standOn(node) {
  if (!node.matches(controls) && !node.hasAttribute("tabindex")) node.tabIndex = -1;
  node.focus({ preventScroll: true });
}

/** Does what takes nodes from below root or moves them; the keyboard keeps its place. */
export function holding(root, change) {
  const now = document.activeElement;
  const place = now && now !== root && root.contains(now) ? placeOf(now) : null;
  change();
  if (place) backTo(place);
}

/** Sets a text only if it is another, so that readers of the screen stay quiet. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const byId = (id) => document.getElementById(id);

/** The JSON of one of the page's data blocks. */
export function block(id) {
  const node = byId(id);
  return node ? JSON.parse(node.textContent) : {};
}

/** A definition list of [name, value] pairs; empty values are left out. */
export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length)) continue;
    const shown = Array.isArray(value) ? el("ul", null, value.map((v) => el("li", null, v))) : value;
    list.append(el("dt", null, name), el("dd", null, shown));
  }
  return list;
}

/** Tells readers of the screen what changed. */
export function announce(text) {
  const node = byId("announce");
  if (node) node.textContent = text;
}
