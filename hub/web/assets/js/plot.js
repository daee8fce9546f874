// How full contexts are: a bar and curves, drawn as SVG. Colour never stands alone: the
// number and a word are beside it (60 % and 80 % are where it changes).
import { svg, el } from "./dom.js";
import { number, t, time } from "./text.js";

/** "ok" below 60 %, "warn" from there, "bad" from 80 %. */
export const level = (percent) => (percent >= 80 ? "bad" : percent >= 60 ? "warn" : "ok");

const words = { ok: "ctx.ok", warn: "ctx.warn", bad: "ctx.full" };

/** "ctx 62 %, filling", or that it is not known. */
export function ctxText(percent) {
  return percent === null || percent === undefined ? t("ctx.none") : `${t("ctx.value", { percent: number(percent) })} · ${t(words[level(percent)])}`;
}

/** The bar with its number and word. */
export function ctxBar(percent) {
  if (percent === null || percent === undefined) return el("span", { class: "idle" }, t("ctx.none"));
  const kind = level(percent);
  const width = Math.max(0, Math.min(100, percent));
  return el("span", { class: "ctx" },
    svg("svg", { class: `bar ${kind}`, width: 72, height: 10, viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 10, rx: 3 }),
      svg("rect", { class: "fill", width, height: 10, rx: 3 })),
    el("span", { class: kind === "ok" ? "" : kind }, ctxText(percent)));
}

/** Fills as percents, oldest first; those of unknown size are left out. */
export function percents(fills) {
  return (fills || []).filter((f) => f.limit > 0).map((f) => ({ at: f.at, generation: f.generation, percent: Math.round((100 * f.total) / f.limit) }));
}

const told = 8; // values that a screen reader is told

function described(list) {
  return t("ctx.history", { list: list.slice(-told).map((p) => `${number(p)} %`).join(", ") });
}

/** A small curve of percents, oldest first; null of less than two. */
export function sparkline(list, width = 96, height = 24) {
  if (list.length < 2) return null;
  const x = (i) => 2 + ((width - 4) * i) / (list.length - 1);
  const y = (p) => height - 2 - ((height - 4) * Math.min(100, Math.max(0, p))) / 100;
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(list) },
    svg("line", { class: "mark", x1: 0, x2: width, y1: y(80), y2: y(80) }),
    svg("polyline", { class: "curve", points: list.map((p, i) => `${x(i).toFixed(1)},${y(p).toFixed(1)}`).join(" ") }),
    svg("circle", { class: "last", cx: x(list.length - 1), cy: y(list.at(-1)), r: 2.5 }));
}

/** A large plot over time; a line stands where a new session began. */
export function occupancy(points, width = 640, height = 200) {
  const left = 40;
  const bottom = 22;
  const begin = points.length ? new Date(points[0].at).getTime() : 0;
  const end = points.length ? new Date(points.at(-1).at).getTime() : 1;
  const x = (at) => left + ((width - left - 8) * (new Date(at).getTime() - begin)) / Math.max(1, end - begin);
  const y = (p) => 8 + ((height - bottom - 8) * (100 - Math.min(100, Math.max(0, p)))) / 100;
  const plot = svg("svg", { class: "plot", width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(points.map((p) => p.percent)) });
  for (const p of [0, 60, 80, 100]) {
    plot.append(
      svg("line", { class: "mark", x1: left, x2: width - 8, y1: y(p), y2: y(p) }),
      svg("text", { x: left - 6, y: y(p) + 4, "text-anchor": "end" }, `${number(p)} %`));
  }
  points.forEach((p, i) => {
    if (i && p.generation !== points[i - 1].generation) {
      plot.append(svg("line", { class: "turn", x1: x(p.at), x2: x(p.at), y1: 8, y2: height - bottom }));
    }
  });
  if (points.length) {
    plot.append(
      svg("polyline", { class: "curve", points: points.map((p) => `${x(p.at).toFixed(1)},${y(p.percent).toFixed(1)}`).join(" ") }),
      svg("g", null, points.map((p) => svg("circle", { class: "last", cx: x(p.at), cy: y(p.percent), r: 3 }, svg("title", null, `${time(p.at)}: ${number(p.percent)} %`)))),
      svg("text", { x: left, y: height - 6 }, time(points[0].at)),
      svg("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, time(points.at(-1).at)));
  }
  return plot;
}
