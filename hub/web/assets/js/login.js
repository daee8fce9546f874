// The login page without a session: it works without this, which counts down.
import { byId, setText } from "./dom.js";
import { t } from "./text.js";
import { themeSwitch } from "./shell.js";

themeSwitch();

const problem = byId("problem");
const until = Date.now() + 1000 * Number(problem?.dataset.wait || 0);
if (problem?.dataset.wait) {
  problem.setAttribute("aria-live", "off"); // it was read when the page came
  const tick = setInterval(() => {
    const left = Math.ceil((until - Date.now()) / 1000);
    if (left > 0) {
      setText(problem, t("login.wait", { seconds: left }));
      return;
    }
    clearInterval(tick);
    problem.setAttribute("aria-live", "assertive");
    problem.classList.replace("bad", "ok");
    setText(problem, t("login.again"));
  }, 250);
}
