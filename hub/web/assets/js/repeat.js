// What no event tells of is asked for again and again, while somebody looks; what has
// not changed since stays as it is shown.
import { holding } from "./dom.js";
import { askEvery } from "./limits.js";
import { live } from "./live.js";

/**
 * Has fn ask, now and then again; the result asks at once. fn gets what tells whether
 * its answer still counts: not when something was asked since. rests says that nothing
 * needs to be asked for now.
 */
export function repeat(fn, rests = () => false) {
  let timer = 0;
  let round = 0;
  async function ask() {
    clearTimeout(timer);
    const mine = ++round;
    await fn(() => mine === round);
    if (mine === round) timer = setTimeout(tick, askEvery);
  }
  // Not for a reader who looks elsewhere.
  function tick() {
    if (document.hidden || live.lost || rests()) timer = setTimeout(tick, askEvery);
    else ask();
  }
  return ask;
}

const sums = new WeakMap(); // node → what it shows

/**
 * Shows items below root in their order and leaves alone what is there and has not
 * changed, so that nobody loses a place in it. key names an item, make makes its node.
 */
export function sync(root, items, key, make) {
  holding(root, () => {
    const shown = new Map();
    for (const n of [...root.children]) {
      if (shown.has(n.dataset.key)) n.remove();
      else shown.set(n.dataset.key, n);
    }
    let at = root.firstElementChild;
    for (const item of items) {
      const k = key(item);
      const sum = JSON.stringify(item);
      let n = shown.get(k);
      if (!n || sums.get(n) !== sum) {
        n = make(item);
        n.dataset.key = k;
        sums.set(n, sum);
      } else {
        shown.delete(k);
      }
      if (n === at) at = at.nextElementSibling;
      else root.insertBefore(n, at);
    }
    for (const n of shown.values()) n.remove();
  });
}
