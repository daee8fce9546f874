// What all pages have: colours, shortcuts, the state of the connection, what waits.
import { announce, byId, setText } from "./dom.js";
import "./drafts.js"; // logging out ends them on every page
import { duration, t } from "./text.js";
import * as keys from "./keys.js";
import { live, on, start as listen } from "./live.js";
import * as notify from "./notify.js";

const themes = ["auto", "light", "dark"];

/** The switch of the colours; also on pages of strangers. */
export function themeSwitch() {
  const button = byId("theme");
  let now = document.documentElement.dataset.theme || "auto";
  const show = () => setText(button, t("theme." + now));
  const next = () => {
    now = themes[(themes.indexOf(now) + 1) % themes.length];
    dispatchEvent(new CustomEvent("mesh-theme", { detail: now }));
    show();
    announce(t("theme." + now));
  };
  show();
  button.hidden = false;
  button.addEventListener("click", next);
  return next;
}

function connection() {
  const banner = byId("connection");
  const text = byId("connection-text");
  const age = byId("connection-age");
  let ticking = 0;
  let hiding = 0;
  const tick = () => setText(age, t("live.age", { age: duration(Date.now() - live.heard) }));
  on("state", (state) => {
    clearInterval(ticking);
    clearTimeout(hiding);
    if (state.lost) {
      banner.classList.remove("back");
      banner.hidden = false;
      setText(text, t("live.lost"));
      tick();
      ticking = setInterval(tick, 1000);
    } else if (state.wasLost) {
      banner.classList.add("back");
      setText(text, t("live.back"));
      setText(age, "");
      hiding = setTimeout(() => {
        banner.hidden = true;
      }, 3000);
    }
    document.body.classList.toggle("lost", Boolean(state.lost));
  });
  age.setAttribute("aria-live", "off"); // it changes every second
}

// otherLanguage leads to what is shown now, also where a choice has changed the address.
function otherLanguage() {
  const link = document.querySelector("a[hreflang]");
  link.addEventListener("click", () => {
    const q = new URLSearchParams(location.search);
    q.set("lang", link.hreflang);
    link.setAttribute("href", `${location.pathname}?${q}`);
  });
}

/** Begins everything; a page calls it once it listens itself. */
export function start() {
  const next = themeSwitch();
  keys.shortcut("t", t("keys.theme"), next);
  keys.start();
  connection();
  otherLanguage();
  notify.start();
  // On a phone the navigation is wider than the window.
  document.querySelector(".places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  listen();
}
