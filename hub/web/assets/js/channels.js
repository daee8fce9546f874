// The OpenComms channels of one node at a time, as that node shows them. What agents
// wrote there is framed and shown as text. No event tells of a channel: what is shown is
// asked for again while somebody looks.
import { announce, block, byId, el, facts, replace, setText } from "./dom.js";
import { exactTime, line, number, t, wordOf } from "./text.js";
import { get } from "./api.js";
import { channelPage, maxLine } from "./limits.js";
import { on } from "./live.js";
import { repeat, sync } from "./repeat.js";
import { start } from "./shell.js";
import { passage } from "./words.js";

const nodes = new Map(block("first").nodes.nodes.map((n) => [n.name, n]));
const select = byId("node");
let node = ""; // whose channels are shown
let list = null; // what it answered
let chosen = ""; // id of the channel
let before = ""; // of the page of messages; "": the newest
let next = "";

function address(of, channel) {
  const q = new URLSearchParams({ node: of });
  if (channel) q.set("channel", channel);
  return "/channels?" + q;
}

function options() {
  const names = [...nodes.keys()].sort();
  replace(select, names.map((name) => el("option", { value: name }, t("channels.option", { name, state: t("node." + nodes.get(name).state) }))));
  select.value = node;
}

function tile(c) {
  const link = el("a", { href: address(node, c.id), "aria-current": c.id === chosen ? "true" : null, on: { click: (e) => {
    if (e.ctrlKey || e.metaKey || e.shiftKey || e.button) return; // elsewhere
    e.preventDefault();
    choose(node, c.id, true);
  } } }, line(c.name, maxLine));
  return el("li", { class: "card" },
    el("div", { class: "head" }, el("h3", { dir: "auto" }, link), c.paused ? el("span", { class: "state warn" }, t("channels.paused")) : null),
    el("p", { class: "line plain" },
      el("span", { class: "cut", dir: "auto" }, line(c.project, maxLine)),
      el("span", null, t("channels.members.count", { count: number(c.members.length), max: number(c.max_members) })),
      el("span", null, t("channels.messages.count", { count: number(c.messages) })),
      el("span", { class: c.waiting ? "warn" : null }, t("channels.waiting", { count: number(c.waiting) }))),
    el("p", { class: "line plain" },
      el("span", null, c.last_at ? t("channels.last", { time: exactTime(c.last_at) }) : t("channels.nomessages")),
      c.linked?.length ? el("span", { class: "cut" }, t("channels.linked", { nodes: c.linked.join(", ") })) : null));
}

let drawn = ""; // what is shown of the channel
function showList() {
  const channels = list?.channels || [];
  sync(byId("channels"), channels.map((c) => ({ ...c, current: c.id === chosen })), (c) => c.id, tile);
  setText(byId("count"), list ? t(list.more ? "channels.count.more" : "channels.count", { count: number(channels.length), node }) : "");
  const c = channels.find((v) => v.id === chosen);
  byId("channel").hidden = !c;
  const now = c ? node + JSON.stringify(c) : "";
  if (now === drawn) return; // and whoever is in it keeps the place
  drawn = now;
  if (!c) return;
  setText(byId("channel-title"), line(c.name, maxLine));
  replace(byId("about"), c.description ? el("p", { class: "untrusted", dir: "auto" }, line(c.description, maxLine)) : null, facts([
    [t("channels.project"), line(c.project, maxLine)],
    [t("channels.created"), exactTime(c.created_at)],
    [t("channels.delivered"), number(c.delivered)],
    [t("channels.links"), (c.linked || []).map((name) => (nodes.has(name) ? el("a", { href: address(name) }, name) : line(name, maxLine)))],
  ]));
  replace(byId("members"), c.members.map((m) => el("tr", null,
    el("th", { scope: "row", dir: "auto" }, line(m.role, maxLine)),
    el("td", null, line(m.host, maxLine)),
    el("td", null, wordOf("mode.", m.mode)),
    el("td", null, el("span", { class: `state ${m.stale ? "bad" : "ok"}` }, t(m.stale ? "member.stale" : "member.here"))),
    el("td", null, number(m.waiting)),
    el("td", null, exactTime(m.joined_at)))));
}

function message(m) {
  return el("li", { class: "untrusted" },
    el("p", { class: "line plain" },
      el("strong", { dir: "auto" }, t("message.between", { from: line(m.from, maxLine), to: line(m.to, maxLine) })),
      el("span", null, wordOf("message.type.", m.type)),
      el("span", null, wordOf("message.status.", m.status)),
      el("span", null, exactTime(m.at)),
      m.hops ? el("span", null, t("message.hops", { count: number(m.hops) })) : null),
    el("p", { class: "line plain mono" }, el("span", { class: "cut" }, line(m.id, maxLine)), m.reply_to ? el("span", { class: "cut" }, t("message.reply", { id: line(m.reply_to, maxLine) })) : null),
    passage(m.content),
    m.truncated ? el("p", { class: "hint plain" }, t("channels.truncated")) : null);
}

function say(id, e) {
  const box = byId(id);
  box.hidden = !e;
  if (e) setText(box, e.shown || String(e));
}

async function loadList(current) {
  try {
    const answer = await get(`/v1/nodes/${encodeURIComponent(node)}/channels`);
    if (!current()) return;
    list = answer;
    const problems = answer.problems || [];
    say("problem", problems.length ? { shown: problems.map((p) => `${line(p.project, maxLine)}: ${line(p.message, maxLine)}`).join(" · ") } : null);
  } catch (e) {
    if (!current()) return;
    say("problem", e.code === "node_offline" ? { shown: t("channels.offline", { node }) } : e);
    if (e.code !== "network") list = null; // what was shown is of a node that does not answer
  }
  showList();
}

async function loadMessages(current) {
  if (!chosen || !list) return;
  const q = new URLSearchParams({ limit: channelPage });
  if (before) q.set("before", before);
  try {
    const page = await get(`/v1/nodes/${encodeURIComponent(node)}/channels/${encodeURIComponent(chosen)}/messages?${q}`);
    if (!current()) return;
    next = page.next || "";
    sync(byId("messages"), page.messages, (m) => m.id, message);
    byId("nomessages").hidden = page.messages.length > 0;
    byId("older").hidden = !next;
    byId("newest").hidden = !before;
    say("trouble", null);
  } catch (e) {
    if (current()) say("trouble", e);
  }
}

// A page of old messages does not change.
const load = repeat(async (current) => {
  if (!node) return;
  await loadList(current);
  if (current()) await loadMessages(current);
}, () => before);

function choose(of, channel, byReader) {
  if (of !== node) {
    list = null;
    showList();
  }
  if (of !== node || channel !== chosen) replace(byId("messages"));
  [node, chosen, before, next] = [of, channel, "", ""];
  byId("older").hidden = byId("newest").hidden = true;
  if (byReader) history.pushState(null, "", address(node, chosen));
  select.value = node;
  showList();
  if (byReader && chosen) byId("channel-title").focus();
  load();
}

function fromAddress() {
  const q = new URLSearchParams(location.search);
  const online = [...nodes.values()].find((n) => n.state === "online");
  choose(q.get("node") || online?.name || [...nodes.keys()][0] || "", q.get("channel") || "", false);
}

function turn(to) {
  before = to;
  load();
  byId("channel-title").focus();
}

select.addEventListener("change", () => choose(select.value, "", true));
byId("again").addEventListener("click", load);
byId("older").addEventListener("click", () => turn(next));
byId("newest").addEventListener("click", () => turn(""));
byId("filters").addEventListener("submit", (e) => e.preventDefault());
addEventListener("popstate", fromAddress);
on("node", (n) => {
  const was = nodes.get(n.name);
  nodes.set(n.name, n);
  if (was?.state === n.state) return;
  if (!was) options();
  else setText(select.querySelector(`option[value="${CSS.escape(n.name)}"]`), t("channels.option", { name: n.name, state: t("node." + n.state) }));
  if (!node) fromAddress();
  else if (n.name === node) {
    announce(`${n.name}: ${t("node." + n.state)}`);
    load();
  }
});
on("resync", load);

options();
if (!nodes.size) setText(byId("count"), t("fleet.empty"));
fromAddress();
start();
