// Runs before the page is drawn, so that it is never drawn in the wrong colours: no module.
(() => {
  const stored = (() => {
    try {
      return localStorage.getItem("quire.theme");
    } catch {
      return null;
    }
  })();
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
