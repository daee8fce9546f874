// The hub's interface. The session's cookie goes along by itself; the browser says
// from which page a change comes, and the hub believes its own only.
import { has, t } from "./text.js";
import { changeLimit } from "./limits.js";

/** What the hub, or the way to it, refused. */
export class Refusal extends Error {
  constructor(code, message, status, retryAfter) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter; // seconds; 0 when it does not say
  }

  /** In the reader's language where there is a text, else in the hub's words. */
  get shown() {
    const key = "error." + this.code;
    return has(key) && this.code !== "not_found" ? t(key) : this.message;
  }
}

/** Leaves for the login page, to come back here. "mesh-leave" says so before. */
export function leave() {
  dispatchEvent(new Event("mesh-leave"));
  location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
}

async function refusalOf(resp) {
  let e = null;
  try {
    e = (await resp.json()).error;
  } catch {
    // not the hub's: a proxy's page, for one
  }
  if (resp.status === 401) leave();
  return new Refusal(e?.code || "unavailable", e?.message || `${resp.status} ${resp.statusText}`, resp.status, Number(resp.headers.get("Retry-After")) || 0);
}

// failed is what a request ended with that has no answer, or not the whole of one.
function failed(e) {
  if (e.name === "AbortError" || e instanceof Refusal) return e;
  return e.name === "TimeoutError" ? new Refusal("no_answer", t("error.no_answer"), 0, 0) : new Refusal("network", t("error.network"), 0, 0);
}

/** The response to a request; what is refused is thrown. limit is for what is no GET, in milliseconds. */
export async function ask(method, path, { body, signal, limit = changeLimit } = {}) {
  let resp;
  try {
    resp = await fetch(path, {
      method,
      // A hub that hangs must not hold a form for ever.
      signal: method === "GET" ? signal : AbortSignal.any([AbortSignal.timeout(limit), ...(signal ? [signal] : [])]),
      credentials: "same-origin",
      cache: "no-store",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (e) {
    throw failed(e);
  }
  if (!resp.ok) throw await refusalOf(resp);
  return resp;
}

export async function get(path, options) {
  return (await ask("GET", path, options)).json();
}

/** Answers without a body are null. */
export async function post(path, body, options) {
  const resp = await ask("POST", path, { ...options, body });
  if (resp.status === 204) return null;
  try {
    return await resp.json();
  } catch (e) {
    throw failed(e);
  }
}
