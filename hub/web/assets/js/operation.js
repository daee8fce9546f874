// Operations on bound sessions, as words and addresses.
import { has, t } from "./text.js";

/** The page of one session. */
export const sessionPath = (s) =>
  `/sessions/${encodeURIComponent(s.controller)}/${encodeURIComponent(s.target)}?workspace=${encodeURIComponent(s.workspace)}`;

/** What an operation is called. */
export const opName = (op) => (has("op." + op) ? t("op." + op) : op);

/** A state in words. */
export const stateText = (state) => (has("state." + state) ? t("state." + state) : state);

/** "compact: running" */
export const opText = (task) => t("op.state", { op: opName(task.op), state: stateText(task.state) });
