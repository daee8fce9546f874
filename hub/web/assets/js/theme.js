// A classic script in the head, so that no page shows in the wrong colours first. The
// choice, and whether there are shortcuts, is all that is kept in the browser's storage.
(() => {
  const key = "mesh-theme";
  const root = document.documentElement;
  const read = () => {
    try {
      const v = localStorage.getItem(key);
      return v === "light" || v === "dark" ? v : "auto";
    } catch {
      return "auto"; // storage is off: as the system
    }
  };
  const show = (v) => {
    if (v === "auto") delete root.dataset.theme;
    else root.dataset.theme = v;
  };
  show(read());
  addEventListener("mesh-theme", (e) => {
    show(e.detail);
    try {
      localStorage.setItem(key, e.detail);
    } catch {
      // it lasts as long as the page
    }
  });
})();
