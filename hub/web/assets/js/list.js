// A list of thousands of which only what is near the window exists. Items have one
// height and are laid out in as many columns as fit. An item that has the focus stays,
// so that the keyboard does not lose its place; if it is listed no more, the next one
// gets the focus.
import { el, standOn } from "./dom.js";

const overscan = 3; // rows beyond the window, above and below

export class VirtualList {
  /**
   * root: the element that holds the items (positioned); rem: height of an item;
   * wide: least width of an item in rem; key: names an item; make() makes an item's
   * element; show(element, item) fills it, also again later.
   */
  constructor({ root, rem, wide = 0, gap = 0.75, key, make, show }) {
    Object.assign(this, { root, rem, wide, gap, key, make, show });
    this.items = [];
    this.places = new Map(); // key → index
    this.shown = new Map(); // key → element
    this.dirty = new Set(); // keys to be shown again
    this.heir = undefined; // key of the item that gets the focus of one that is gone
    this.frame = 0;
    const later = () => this.later();
    addEventListener("scroll", later, { passive: true });
    addEventListener("resize", later);
    new ResizeObserver(later).observe(root);
  }

  /** Sets what is listed, in this order, and shows it as it is now. */
  set(items) {
    const old = this.items;
    this.items = items;
    this.places = new Map(items.map((item, i) => [this.key(item), i]));
    const focused = this.focused();
    const at = focused === undefined || this.places.has(focused) ? -1 : old.findIndex((item) => this.key(item) === focused);
    if (at >= 0) this.heir = [...old.slice(at + 1), ...old.slice(0, at).reverse()].map(this.key).find((key) => this.places.has(key));
    for (const key of this.shown.keys()) this.dirty.add(key);
    this.later();
  }

  /** Shows an item again whose content changed in place. */
  touch(key) {
    this.dirty.add(key);
    this.later();
  }

  // focused is the key of the item that has the focus.
  focused() {
    const now = document.activeElement;
    return this.root.contains(now) ? now.closest("[data-item]")?.dataset.item : undefined;
  }

  later() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const gap = this.gap * unit;
    const width = this.root.clientWidth;
    const columns = this.wide ? Math.max(1, Math.floor((width + gap) / (this.wide * unit + gap))) : 1;
    const row = this.rem * unit + gap;
    const rows = Math.ceil(this.items.length / columns);
    this.root.style.height = `${Math.max(0, rows * row - gap)}px`;
    const top = -this.root.getBoundingClientRect().top;
    const from = Math.max(0, Math.floor(top / row) - overscan) * columns;
    const to = Math.min(this.items.length, (Math.ceil((top + innerHeight) / row) + overscan) * columns);

    const wanted = new Map();
    for (let i = from; i < to; i++) wanted.set(this.key(this.items[i]), i);
    const focused = this.focused();
    const left = focused === undefined || this.places.has(focused) ? focused : this.places.has(this.heir) ? this.heir : this.items.length ? this.key(this.items[0]) : undefined;
    if (left !== undefined) wanted.set(left, this.places.get(left));

    for (const [key, node] of this.shown) {
      if (!wanted.has(key)) {
        node.remove();
        this.shown.delete(key);
      }
    }
    const cell = (width - gap * (columns - 1)) / columns;
    for (const [key, i] of [...wanted].sort((a, b) => a[1] - b[1])) {
      let node = this.shown.get(key);
      if (!node) {
        node = this.make();
        node.classList.add("listed");
        node.dataset.item = key;
        node.setAttribute("role", "listitem");
        this.shown.set(key, node);
        this.dirty.add(key);
      }
      if (this.dirty.has(key)) this.show(node, this.items[i]);
      this.place(node, i, columns, cell, gap, row);
    }
    this.order(wanted, this.shown.get(left));
    if (left !== focused) standOn(left === undefined ? document.querySelector("#main h1") : this.shown.get(left).querySelector("a, button"));
    this.dirty.clear();
  }

  place(node, i, columns, cell, gap, row) {
    node.setAttribute("aria-setsize", this.items.length);
    node.setAttribute("aria-posinset", i + 1);
    node.style.left = `${(i % columns) * (cell + gap)}px`;
    node.style.top = `${Math.floor(i / columns) * row}px`;
    node.style.width = `${cell}px`;
    node.style.height = `${this.rem}rem`;
  }

  // The order of elements is that of the items: Tab and screen readers go by it. The
  // one that has the focus is never moved, for that would take the focus away: what is
  // before it and should not be goes to the end, from where it gets its place.
  order(wanted, fixed) {
    let at = this.root.firstElementChild;
    for (const [key] of [...wanted].sort((a, b) => a[1] - b[1])) {
      const node = this.shown.get(key);
      if (node === fixed) {
        while (at !== node) {
          const next = at.nextElementSibling;
          this.root.append(at);
          at = next;
        }
      }
      if (node === at) at = at.nextElementSibling;
      else this.root.insertBefore(node, at);
    }
  }
}

/** An element for make() that show() fills. */
export const cardOf = () => el("div", { class: "card" });
