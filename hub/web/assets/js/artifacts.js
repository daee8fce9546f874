// The files of a result: downloaded by the browser, or looked at here. What a file is
// is read from its first bytes, never from its name, and no file is shown as a page:
// text as text, and images of four kinds through an address that only this page knows.
import { el, replace } from "./dom.js";
import { ask } from "./api.js";
import { bytes, line, t } from "./text.js";
import { maxLine, maxPreviewImage, maxPreviewText } from "./limits.js";

const fileURL = (task, path) => `/v1/tasks/${encodeURIComponent(task)}/artifacts/file?path=${encodeURIComponent(path)}`;

const begins = (b, at, ...codes) => codes.every((c, i) => b[at + i] === c);

function imageType(b) {
  if (begins(b, 0, 0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "image/png";
  if (begins(b, 0, 0xff, 0xd8, 0xff)) return "image/jpeg";
  if (begins(b, 0, 0x47, 0x49, 0x46, 0x38)) return "image/gif";
  if (begins(b, 0, 0x52, 0x49, 0x46, 0x46) && begins(b, 8, 0x57, 0x45, 0x42, 0x50)) return "image/webp";
  return "";
}

// head reads the beginning of a file, as much as its kind may be shown of.
async function head(resp, stop) {
  const reader = resp.body.getReader();
  const parts = [];
  let size = 0;
  let type = null;
  let most = maxPreviewText;
  for (;;) {
    const { done, value } = await reader.read();
    if (value) {
      parts.push(value);
      size += value.length;
    }
    if (type === null && (size >= 12 || done)) {
      type = imageType(new Uint8Array(await new Blob(parts).slice(0, 12).arrayBuffer()));
      if (type) most = maxPreviewImage;
    }
    if (done) return { parts, size, type, whole: true };
    if (size > most) {
      stop.abort(); // the rest is not wanted
      return { parts, size, type, whole: false };
    }
  }
}

function textOf(buffer, whole) {
  const data = new Uint8Array(buffer).subarray(0, maxPreviewText);
  if (data.includes(0)) return null;
  try {
    // A character that the cut divides is left out.
    return new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: !whole });
  } catch {
    return null;
  }
}

// preview shows a file in a box until stop is aborted, which the box's owner does when
// it is hidden: what comes later belongs nowhere.
async function preview(box, task, file, stop) {
  const enough = new AbortController(); // more than is shown has come
  const show = (...what) => stop.signal.aborted || replace(box, what);
  replace(box, el("p", { class: "hint", role: "status" }, t("artifact.loading")));
  try {
    const got = await head(await ask("GET", fileURL(task, file.path), { signal: AbortSignal.any([stop.signal, enough.signal]) }), enough);
    const blob = new Blob(got.parts, { type: got.type });
    if (got.type) {
      if (!got.whole) throw new Error(t("artifact.toolarge", { size: bytes(maxPreviewImage) }));
      const url = URL.createObjectURL(blob);
      const img = el("img", { alt: t("artifact.image", { path: line(file.path, maxLine) }) });
      await new Promise((resolve, reject) => {
        img.onload = resolve;
        img.onerror = () => reject(new Error(t("artifact.broken")));
        img.src = url;
      }).finally(() => URL.revokeObjectURL(url)); // it is in memory by now
      show(img);
      return;
    }
    const text = textOf(await blob.arrayBuffer(), got.whole);
    if (text === null) throw new Error(t("artifact.binary"));
    show(
      el("pre", { class: "said", dir: "auto", tabindex: "0", role: "region", "aria-label": t("artifact.text", { path: line(file.path, maxLine) }) }, text),
      got.whole ? null : el("p", { class: "hint" }, t("artifact.cut", { size: bytes(maxPreviewText) })));
  } catch (e) {
    // A TypeError is the browser's: the connection broke off.
    show(el("p", { class: "notice warn", role: "alert" }, e instanceof TypeError ? t("error.network") : e.shown || e.message));
  }
}

// download asks first whether the file comes, for a browser that is refused one shows
// nothing of the reason.
async function download(problem, task, path) {
  replace(problem);
  const stop = new AbortController();
  try {
    await ask("GET", fileURL(task, path), { signal: stop.signal });
    stop.abort();
    el("a", { href: fileURL(task, path), download: "" }).click();
  } catch (e) {
    replace(problem, e.shown || e.message);
  }
}

function row(task, file) {
  const box = el("div", { class: "preview", hidden: true });
  const problem = el("p", { class: "plain bad", role: "alert" });
  const name = line(file.path, maxLine);
  const show = el("button", { type: "button", "aria-expanded": "false", "aria-label": `${t("artifact.preview")}: ${name}` }, t("artifact.preview"));
  let stop = null;
  show.addEventListener("click", () => {
    stop?.abort();
    box.hidden = !box.hidden;
    show.setAttribute("aria-expanded", String(!box.hidden));
    if (box.hidden) replace(box);
    else preview(box, task, file, (stop = new AbortController()));
  });
  const get = el("a", { class: "button", href: fileURL(task, file.path), download: "", "aria-label": `${t("artifact.download")}: ${name}` }, t("artifact.download"));
  get.addEventListener("click", (e) => {
    e.preventDefault();
    download(problem, task, file.path);
  });
  return el("li", { class: "artifact stack" },
    el("div", { class: "row" },
      el("bdi", { class: "mono grow" }, name),
      file.problem ? el("span", { class: "warn", dir: "auto" }, line(file.problem, maxLine)) : el("span", { class: "hint", title: file.sha256 ? `SHA-256 ${file.sha256}` : null }, file.size === undefined ? "" : bytes(file.size)),
      file.problem ? null : [show, get]),
    problem, box);
}

/** The files of a task's result; of a listing without files, their paths are all. */
export function artifactList(task) {
  const known = new Map((task.files || []).map((f) => [f.path, f]));
  const files = (task.artifacts || []).map((path) => known.get(path) || { path });
  return files.length ? el("ul", { class: "artifacts" }, files.map((f) => row(task.task, f))) : null;
}
