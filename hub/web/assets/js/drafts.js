// What a reader has written and not sent. It is kept in this tab only, for another page
// or for a login that comes between, and only for the name that wrote it; with logging
// out it is gone.

const prefix = "mesh-draft-";
const whose = document.querySelector(".user")?.textContent || "";
let over = false; // the reader has logged out

const kept = () => Object.keys(sessionStorage).filter((key) => key.startsWith(prefix));

function tried(fn) {
  try {
    return fn();
  } catch {
    return null; // no storage, or too much for it: the page itself still has it
  }
}

/** Keeps a draft, or with null none. */
export function keepDraft(name, draft) {
  tried(() => {
    if (draft && !over) sessionStorage.setItem(prefix + name, JSON.stringify({ whose, draft }));
    else sessionStorage.removeItem(prefix + name);
  });
}

/** The draft that was kept; null for none. */
export function draftOf(name) {
  return tried(() => JSON.parse(sessionStorage.getItem(prefix + name)).draft);
}

/** fn keeps what is to be kept, for the page is about to go. */
export function onLeave(fn) {
  addEventListener("mesh-leave", fn); // a write on the very way out may come too late
  addEventListener("pagehide", fn);
}

tried(() => {
  if (!whose) return; // the login page: it is not known yet who comes
  for (const key of kept()) {
    if (JSON.parse(sessionStorage.getItem(key)).whose !== whose) sessionStorage.removeItem(key);
  }
});
document.querySelector('form[action="/logout"]')?.addEventListener("submit", () => {
  over = true;
  tried(() => kept().forEach((key) => sessionStorage.removeItem(key)));
});
