// Elements without a template language: nothing here or elsewhere makes HTML out of text.

// el("p", {class: "x", onclick: f, "aria-label": "y", hidden: true}, "text", node, null, [more])
export function el(name, properties, ...children) {
  return fill(document.createElement(name), properties, children);
}

export function svg(name, properties, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) {
      element.addEventListener(key.slice(2), value);
    } else {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

// Drawn on a 16 x 16 grid with a line of 1.5.
const ICONS = {
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  plus: "M8 3v10M3 8h10",
  sliders: "M2.5 5h6M12 5h1.5M2.5 11h1.5M7.5 11h6M10.2 3.3v3.4M5.8 9.3v3.4",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M6 6h7v7.5H6zM10 6V2.5H3V10h3",
  check: "M3 8.5l3.2 3.2L13 5",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v2.6h-2.6",
  edit: "M3 13l.6-2.8 7-7 2.2 2.2-7 7zM9.2 4.6l2.2 2.2",
  trash: "M3 4.5h10M6.3 4.3V2.8h3.4v1.5M4.3 4.5l.6 8.7h6.2l.6-8.7",
  download: "M8 2.5v7.6M4.8 7.2L8 10.3l3.2-3.1M3 13h10",
  left: "M9.8 4L6 8l3.8 4",
  right: "M6.2 4L10 8l-3.8 4",
  up: "M8 13V3.5M4 7.3L8 3.3l4 4",
  stop: "M5 5h6v6H5z",
  light: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  dark: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 2.5v11M10 4v8M12 5.5v5",
  help: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM6.3 6.4c.1-1 .8-1.6 1.7-1.6s1.7.6 1.7 1.5c0 1.2-1.6 1.3-1.6 2.5M8 11.1v.2",
};

export function icon(name) {
  const filled = name === "stop" ? "currentColor" : "none";
  return svg("svg", {viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true"},
             svg("path", {d: ICONS[name], fill: filled}));
}

export function iconButton(name, label, onclick, properties) {
  return el("button", {type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties},
            icon(name));
}

// The icons that the pages' HTML asks for: <button data-icon="menu">.
export function fillIcons(root = document) {
  for (const element of root.querySelectorAll("[data-icon]")) element.prepend(icon(element.dataset.icon));
}

// Says something to who does not see the page; and, for a moment, to who does.
export function announce(text) {
  const place = byId("status");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = text; });
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not a secure origin: http from another machine
    const area = el("textarea", {class: "offscreen"});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// A button that copies what text() gives and says so.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    await copyText(text());
    button.replaceChildren(icon("check"));
    announce("Copied");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

// Asks in a dialog; true when the answer is yes.
export function confirmDialog(title, text, action) {
  return new Promise((resolve) => {
    const dialog = el("dialog", {class: "dialog", "aria-label": title, onclose: () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    }},
    el("h2", {}, title), el("p", {}, text),
    el("div", {class: "dialog-actions"},
       el("button", {type: "button", class: "button", onclick: () => dialog.close("no")}, "Cancel"),
       el("button", {type: "button", class: "button danger", onclick: () => dialog.close("yes")}, action)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
