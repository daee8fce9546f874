// Context: whom queries can reach, what may leave for whom by whose consent, and what
// was asked, what it cost and what was cited. Words of providers and goals of others are
// framed and shown as text.
import { announce, backTo, block, byId, el, facts, placeOf, replace, setText } from "./dom.js";
import { exactTime, line, number, t, visible, wordOf } from "./text.js";
import { ask, get } from "./api.js";
import { maxLine, maxPassage, maxQueries, maxScope, queryPage, refreshEvery } from "./limits.js";
import { citedList, contextURL, costText, legList } from "./contextview.js";
import { on } from "./live.js";
import { repeat, sync } from "./repeat.js";
import { confirmed, taskLink } from "./taskview.js";
import { start } from "./shell.js";

const select = byId("node");
let providers = [];
let node = new URLSearchParams(location.search).get("node") || ""; // "": all

const problemOf = (id) => (e) => {
  const box = byId(id);
  box.hidden = !e;
  if (e) setText(box, e.shown || String(e));
};
const sayProviders = problemOf("problem");
const sayQueries = problemOf("trouble");

// --- providers and consents ---

function options() {
  const names = [...new Set([...providers.map((p) => p.node), ...(node ? [node] : [])])].sort();
  replace(select, el("option", { value: "" }, t("context.everywhere")), names.map((name) => el("option", { value: name }, line(name, maxLine))));
  select.value = node;
}

function flowText(f) {
  const words = ["reads", "writes", "egress"].filter((k) => f[k]).map((k) => t("flow." + k));
  const scopes = (f.egress_scopes || []).map((s) => wordOf("flow.scope.", s));
  return (words.length ? words.join(" · ") : t("flow.none")) + (scopes.length ? ` (${scopes.join(", ")})` : "");
}

// state is how consent to a provider stands: a word and its colour.
function state(p) {
  if (p.changed?.length) return ["changed", "warn"];
  if (p.needs_consent) return ["needed", "warn"];
  return p.consent ? ["given", "ok"] : ["free", "idle"];
}

const isNode = (p) => p.id === p.node;
const nameOf = (p) => (isNode(p) ? t("context.node", { node: p.node }) : line(p.name || p.id, maxLine));
const pathOf = (p) => "/v1/context/consents/" + (isNode(p) ? encodeURIComponent(p.node) : `${encodeURIComponent(p.node)}/${encodeURIComponent(p.id.slice(p.node.length + 1))}`);

// change sends a change of a consent and says what came of it at the card's foot.
async function change(p, button, method, body, said) {
  const place = placeOf(button);
  button.disabled = true;
  try {
    await ask(method, pathOf(p), body === undefined ? {} : { body });
    announce(t(said, { name: p.id }));
    sayProviders(null);
    await loadProviders();
  } catch (e) {
    sayProviders(e);
  }
  button.disabled = false;
  backTo(place);
}

// suggested is what a consent says if its giver has nothing to add.
function suggested(p) {
  if (isNode(p)) return t("consent.suggest.node", { node: p.node });
  const scopes = (p.data_flow.egress_scopes || []).map((s) => wordOf("flow.scope.", s)).join(", ");
  return t(scopes ? "consent.suggest.scopes" : "consent.suggest.provider", { id: line(p.id, 100), scopes: line(scopes, 200) });
}

const size = (text) => new TextEncoder().encode(text).length;

// askScope asks in which words somebody consents; null if not at all.
function askScope(p) {
  return new Promise((resolve) => {
    const field = el("input", { id: "scope", autocomplete: "off", dir: "auto", maxlength: maxScope, required: true, autofocus: true, "aria-describedby": "scope-hint scope-problem" });
    field.value = suggested(p);
    const problem = el("p", { class: "bad plain", id: "scope-problem", role: "alert" });
    const dialog = el("dialog", { "aria-labelledby": "consent-title" });
    const form = el("form", { method: "dialog", class: "stack" },
      el("h2", { id: "consent-title" }, t("consent.title", { name: line(p.id, maxLine) })),
      about(p),
      p.changed?.length ? el("p", { class: "notice warn plain" }, t("consent.changed", { what: p.changed.map((v) => line(v, maxLine)).join(", ") })) : null,
      el("label", { for: "scope" }, t("consent.scope")), field,
      el("p", { class: "hint plain", id: "scope-hint" }, t(isNode(p) ? "consent.hint.node" : "consent.hint.provider")), problem,
      el("p", { class: "actions" }, el("button", { type: "button", on: { click: () => dialog.close() } }, t("cancel")), el("button", { class: "main", type: "submit" }, t("consent.give"))));
    form.noValidate = true;
    let scope = null;
    form.addEventListener("submit", (e) => {
      const said = field.value.trim();
      if (said && size(said) <= maxScope) {
        scope = said;
        return; // the dialog closes
      }
      e.preventDefault();
      setText(problem, t(said ? "consent.toolong" : "consent.noscope", { count: number(maxScope) }));
      field.focus();
    });
    replace(dialog, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(scope);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

async function consent(p, button) {
  const place = placeOf(button);
  const scope = await askScope(p);
  if (scope === null) backTo(place);
  else await change(p, button, "PUT", { scope, shown: p.shown || "nothing" }, "consent.given");
}

async function revoke(p, button) {
  const place = placeOf(button);
  if (await confirmed(t("consent.revoke.sure", { name: line(p.id, maxLine) }), t("consent.revoke"))) await change(p, button, "DELETE", undefined, "consent.revoked");
  else backTo(place);
}

const about = (p) => facts([
  [t("context.flow"), flowText(p.data_flow)],
  [t("context.where"), p.where ? el("bdi", { class: "mono" }, line(p.where, maxLine)) : ""],
]);

function card(p) {
  const [word, colour] = state(p);
  const button = (key, cls, act) => {
    const b = el("button", { type: "button", class: cls, data: { control: `${key} ${p.id}` }, "aria-label": `${t(key)}: ${line(p.id, maxLine)}` }, t(key), " …");
    b.addEventListener("click", () => act(p, b));
    return b;
  };
  return el("li", { class: isNode(p) ? "card" : "card provider" },
    el("div", { class: "head" }, el("h3", { dir: "auto" }, nameOf(p)), el("span", { class: `state ${colour}` }, t("consent.state." + word))),
    isNode(p) ? null : el("p", { class: "line plain" }, el("code", null, line(p.id, maxLine)), p.version ? el("span", null, line(p.version, maxLine)) : null, p.kinds?.length ? el("span", null, t("context.kinds", { kinds: p.kinds.map((k) => line(k, maxLine)).join(", ") })) : null),
    about(p),
    p.consent ? el("div", { class: "untrusted stack" },
      el("p", { class: "plain", dir: "auto" }, line(p.consent.scope, maxPassage)),
      el("p", { class: "plain hint" }, p.consent.granted_by ? t("consent.by", { time: exactTime(p.consent.granted_at), name: line(p.consent.granted_by, maxLine) }) : t("consent.at", { time: exactTime(p.consent.granted_at) }))) : null,
    p.changed?.length ? el("p", { class: "plain warn" }, t("consent.changed", { what: p.changed.map((v) => line(v, maxLine)).join(", ") })) : null,
    p.error ? el("p", { class: "plain bad", dir: "auto" }, line(p.error, maxLine)) : null,
    el("p", { class: "actions" },
      p.needs_consent || p.changed?.length ? button("consent.give", "main", consent) : null,
      p.consent ? button("consent.revoke", "danger", revoke) : null));
}

function showProviders() {
  const shown = providers.filter((p) => !node || p.node === node);
  sync(byId("providers"), shown, (p) => p.id, card);
  const waits = shown.filter((p) => p.needs_consent).length;
  setText(byId("count"), shown.length ? t("context.count", { count: number(shown.filter((p) => !isNode(p)).length), nodes: number(shown.filter(isNode).length), needed: number(waits) }) : t("context.empty"));
}

let round = 0;
// loadProviders asks all nodes, so it is done when somebody wants it and after changes.
async function loadProviders() {
  const mine = ++round;
  try {
    const answer = await get("/v1/context/providers");
    if (mine !== round) return;
    providers = answer.providers;
    options();
    showProviders();
    sayProviders(null);
  } catch (e) {
    if (mine === round) sayProviders(e);
  }
}

// --- queries ---

let limit = queryPage;

function record(q) {
  const part = (name, body) => el("details", null, el("summary", null, name), body);
  return el("li", { class: "card" },
    el("p", { class: "line plain" },
      el("strong", { dir: "auto" }, t("context.asked", { name: line(q.asker?.name || t("context.hub"), maxLine) })),
      el("span", null, exactTime(q.at)),
      el("span", { class: "cost" }, costText(q.tokens, q.max_tokens)),
      q.truncated ? el("span", { class: "warn" }, t("context.truncated")) : null,
      el("code", null, line(q.id, maxLine))),
    el("p", { class: "plain untrusted goal", dir: "auto" }, q.goal.length > maxPassage ? line(q.goal, maxPassage) : visible(q.goal)),
    q.tasks?.length ? el("p", { class: "plain" }, t("context.tasks"), " ", q.tasks.map((id, i) => [i ? ", " : "", taskLink(line(id, maxLine))])) : null,
    part(t("context.legs", { count: number(q.legs.length), bad: number(q.legs.filter((l) => l.outcome !== "frames").length) }), legList(q.legs)),
    part(t("context.frames", { count: number(q.frames.length) }), citedList(q.frames)));
}

const loadQueries = repeat(async (current) => {
  try {
    const answer = await get("/v1/context/queries?limit=" + limit);
    if (!current()) return;
    sync(byId("queries"), answer.queries, (q) => q.id, record);
    byId("noqueries").hidden = answer.queries.length > 0;
    byId("older").hidden = !answer.more || limit >= maxQueries;
    sayQueries(null);
  } catch (e) {
    if (current()) sayQueries(e);
  }
});

// --- the rest ---

function load() {
  loadProviders();
  loadQueries();
}

function choose(of) {
  node = of;
  select.value = of;
  showProviders();
}

select.addEventListener("change", () => {
  history.pushState(null, "", select.value ? contextURL(select.value) : "/context");
  choose(select.value);
});
addEventListener("popstate", () => choose(new URLSearchParams(location.search).get("node") || ""));
byId("again").addEventListener("click", load);
byId("older").addEventListener("click", () => {
  limit = Math.min(limit + queryPage, maxQueries);
  loadQueries();
});
byId("filters").addEventListener("submit", (e) => e.preventDefault());
const states = new Map(block("first").nodes.nodes.map((n) => [n.name, n.state]));
let soon = 0;
on("node", (n) => {
  if (states.get(n.name) === n.state) return;
  states.set(n.name, n.state);
  soon ||= setTimeout(() => { // many may come and go at once
    soon = 0;
    loadProviders();
  }, refreshEvery);
});
on("resync", load);

options();
load();
start();
