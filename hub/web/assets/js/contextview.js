// How context queries are shown: what became of each provider and what to do about it,
// and which frames were cited. Their words are providers', so they are shown as text.
import { el } from "./dom.js";
import { has, line, number, t, wordOf } from "./text.js";
import { maxCited, maxLegs, maxLine } from "./limits.js";

/** The page of providers, at one of them. */
export const contextURL = (node) => "/context?" + new URLSearchParams({ node });

const kinds = { frames: "ok done", consent_required: "warn", failed: "bad", budget_lie: "bad", flood: "bad" };

/** Where something comes from: node and provider. */
export const sourceOf = (v) => [v.node, v.provider].filter(Boolean).map((s) => line(s, maxLine)).join(" / ");

/** What there is to do about a leg; null when it went well. */
function advice(leg) {
  if (leg.outcome === "consent_required") return el("a", { href: contextURL(leg.node || "") }, t("leg.consent"));
  return has("leg.do." + leg.outcome) ? el("span", { class: "hint" }, t("leg.do." + leg.outcome)) : null;
}

function legRow(leg) {
  return el("li", null,
    el("span", { class: `state ${kinds[leg.outcome] || "warn"}` }, wordOf("leg.", leg.outcome)), " ",
    el("bdi", null, sourceOf(leg)),
    leg.outcome === "frames" ? el("span", { class: "hint" }, " · ", t("leg.used", { used: number(leg.used), found: number(leg.found), tokens: number(leg.tokens) })) : null,
    leg.claimed ? el("span", { class: "hint" }, " · ", t("leg.claimed", { count: number(leg.claimed) })) : null,
    el("span", { class: "hint" }, " · ", t("task.ms", { count: number(leg.took_ms) })),
    leg.error ? [" · ", el("bdi", { class: "bad" }, line(leg.error, maxLine))] : null,
    " ", advice(leg));
}

/** What became of every provider that was to be asked. */
export function legList(legs) {
  if (!legs.length) return el("p", { class: "plain warn" }, t("leg.none"), " ", el("a", { href: "/context" }, t("leg.consent")));
  return [
    el("ul", { class: "plainlist" }, legs.slice(0, maxLegs).map(legRow)),
    legs.length > maxLegs ? el("p", { class: "plain hint" }, t("leg.further", { count: number(legs.length - maxLegs) })) : null,
  ];
}

/** Which frames are quoted, by the numbers of their citations. */
export function citedList(frames) {
  if (!frames.length) return el("p", { class: "plain hint" }, t("cited.none"));
  return [
    el("ol", { class: "plainlist untrusted cited" }, frames.slice(0, maxCited).map((f) => el("li", { value: f.number },
      el("bdi", null, line(f.label || f.title || f.id, maxLine)),
      f.title && f.title !== f.label ? [" — ", el("bdi", null, line(f.title, maxLine))] : null,
      el("span", { class: "hint" }, " · ", el("bdi", null, sourceOf(f)), " · ", t("cited.tokens", { count: number(f.tokens) })),
      f.uri ? [" · ", el("bdi", { class: "mono" }, line(f.uri, maxLine))] : null))),
    frames.length > maxCited ? el("p", { class: "plain hint" }, t("cited.further", { count: number(frames.length - maxCited) })) : null,
  ];
}

/** "1,234 of 4,096 tokens" */
export const costText = (tokens, of) => (of ? t("context.cost", { tokens: number(tokens), max: number(of) }) : t("cited.tokens", { count: number(tokens) }));
