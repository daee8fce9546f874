// One stream of events for the page. Whoever listens is told of tasks and nodes as they
// change, of "resync" when events were missed and all is to be asked for again, and of
// "state" when the connection is lost or back. Silence of two beats is a loss too: a
// connection may die without a word.
import { get } from "./api.js";
import { block } from "./dom.js";
import { firstRetry, lastRetry, silence } from "./limits.js";

const first = block("first");
const listeners = new Map(); // type → functions
let source = null;
let lastID = first.last_event || "";
let retry = firstRetry;
let timer = 0;
let watchdog = 0;

/** What is known of the connection. heard is when the hub was heard of last, and
 *  skew what to add to this machine's clock to get the hub's, in milliseconds. */
export const live = { connected: false, lost: false, heard: Date.now(), skew: 0 };

/** The hub's time. */
export const hubNow = () => Date.now() + live.skew;

export function on(type, fn) {
  if (!listeners.has(type)) listeners.set(type, []);
  listeners.get(type).push(fn);
}

function tell(type, value) {
  for (const fn of listeners.get(type) || []) fn(value);
}

function heard(event) {
  live.heard = Date.now();
  if (event.lastEventId) lastID = event.lastEventId;
  clearTimeout(watchdog);
  watchdog = setTimeout(lose, silence);
  if (!live.connected) {
    const wasLost = live.lost;
    live.connected = true;
    live.lost = false;
    retry = firstRetry;
    tell("state", { ...live, wasLost });
  }
}

function lose() {
  clearTimeout(watchdog);
  source?.close();
  source = null;
  if (!live.lost) {
    live.connected = false;
    live.lost = true;
    tell("state", { ...live });
  }
  clearTimeout(timer);
  timer = setTimeout(again, retry);
  retry = Math.min(2 * retry, lastRetry);
}

// again asks first whether the session is still good: an EventSource does not say why
// it fails. Who is logged out is led to the login page by that.
async function again() {
  try {
    await get("/v1/whoami", { signal: AbortSignal.timeout(silence) });
  } catch {
    lose();
    return;
  }
  open();
}

function open() {
  source?.close();
  const s = new EventSource("/v1/events" + (lastID ? "?after=" + encodeURIComponent(lastID) : ""));
  source = s;
  const take = (type, fn) => s.addEventListener(type, (e) => {
    if (s !== source) return;
    heard(e);
    fn(JSON.parse(e.data));
  });
  take("task", (v) => tell("task", v));
  take("node", (v) => tell("node", v));
  take("resync", (v) => tell("resync", v));
  take("cut", () => { // we were too slow; what came meanwhile comes now
    s.close();
    clearTimeout(timer);
    timer = setTimeout(open, firstRetry);
  });
  take("beat", (v) => {
    live.skew = new Date(v.at).getTime() - Date.now();
  });
  s.onerror = () => {
    if (s === source) lose();
  };
  clearTimeout(watchdog);
  watchdog = setTimeout(lose, silence);
}

/** Begins to listen. */
export function start() {
  open();
  addEventListener("pagehide", () => {
    source?.close();
    source = null;
    clearTimeout(timer);
    clearTimeout(watchdog);
  });
  addEventListener("pageshow", (e) => {
    if (e.persisted) open(); // back from the browser's own history
  });
  addEventListener("online", () => {
    if (live.lost) {
      clearTimeout(timer);
      retry = firstRetry;
      again();
    }
  });
}
