// The audit log, newest first. Filters and pages are addresses, so that the browser's
// way back works and a page can be passed on.
import { block, byId, el, replace, setText } from "./dom.js";
import { exactTime, has, line, number, t } from "./text.js";
import { maxLine } from "./limits.js";
import { start } from "./shell.js";

// Actions that the filter offers; entries of others are shown by their own name.
const actions = [
  "login", "login_refused", "logout", "join", "join_refused", "join_replace", "dispatched", "answered", "canceled", "retried", "abandoned",
  "session_compact", "session_reset", "session_clear", "consented", "withdrew_consent", "revoked", "password_changed", "from_mismatch",
];
const named = (action) => (has("act." + action) ? t("act." + action) : action);

const page = block("first").audit;
const query = new URLSearchParams(location.search);
const chosen = { action: query.get("action") || "", name: query.get("name") || "" };

function address(path, extra) {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...chosen, ...extra })) {
    if (value !== "" || name === "before") q.set(name, value);
  }
  return path + (q.size ? "?" + q : "");
}

const select = byId("action");
const known = new Set([...actions, ...page.entries.map((e) => e.action)]);
if (chosen.action) known.add(chosen.action);
for (const action of known) select.append(el("option", { value: action }, named(action)));
select.value = chosen.action;
select.addEventListener("change", () => byId("filters").requestSubmit());
byId("search").value = chosen.name;
byId("export").setAttribute("href", address("/v1/audit", { before: "", format: "jsonl" }));

replace(byId("entries"), page.entries.map((e) => el("tr", null,
  el("td", { class: "when" }, exactTime(e.at)),
  el("td", null, named(e.action), has("act." + e.action) ? [" ", el("code", null, e.action)] : null),
  [e.actor, e.object, e.detail, e.peer].map((v) => el("td", null, line(v, maxLine))))));

const entries = page.entries;
setText(byId("range"), entries.length
  ? t("audit.range", { count: number(entries.length), from: exactTime(entries.at(-1).at), to: exactTime(entries[0].at) })
  : t(page.next ? "audit.further" : "audit.empty"));
const newest = byId("newest");
newest.setAttribute("href", address("/audit"));
newest.hidden = !query.get("before");
const older = byId("older");
older.setAttribute("href", address("/audit", { before: String(page.next || "") }));
older.hidden = !page.next;

start();
