// What both pages share: light and dark, dialogs that close when the space around them is clicked, the key.
import {announce, byId, fillIcons, icon} from "./dom.js";

const THEMES = ["auto", "light", "dark"];

function stored(storage, name) {
  try {
    return storage.getItem(name);
  } catch {  // storage is forbidden
    return null;
  }
}

function store(storage, name, value) {
  try {
    if (value) {
      storage.setItem(name, value);
    } else {
      storage.removeItem(name);
    }
  } catch {
    // It holds for as long as the page is open, then.
  }
}

let key = stored(sessionStorage, "quire.key") ?? "";
export const apiKey = () => key;
// Kept for this tab, and gone with it.
export function setApiKey(value) {
  key = value.trim();
  store(sessionStorage, "quire.key", key);
}

export const preference = (name) => stored(localStorage, `quire.${name}`);
export const setPreference = (name, value) => store(localStorage, `quire.${name}`, value);

function showTheme(button, theme) {
  if (theme === "auto") {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme;
  }
  const label = `Colours: ${theme === "auto" ? "as the system" : theme}`;
  button.replaceChildren(icon(theme));
  button.title = label;
  button.setAttribute("aria-label", label);
}

function setUpTheme(button) {
  let theme = THEMES.includes(preference("theme")) ? preference("theme") : "auto";
  showTheme(button, theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setPreference("theme", theme === "auto" ? "" : theme);
    showTheme(button, theme);
    announce(button.title);
  });
}

export function setUpPage() {
  fillIcons();
  setUpTheme(byId("theme"));
  document.addEventListener("click", (event) => {
    if (event.target instanceof HTMLDialogElement) event.target.close("no");
  });
}
