// Elements are made of names, attributes and text. Text is never read as markup, whoever wrote it.

const SVG = "http://www.w3.org/2000/svg";

// Strokes of the icons, on a field of 24 by 24.
const ICONS = {
  check: "M5 13l4 4L19 7",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  redo: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  sliders: "M4 8h10M18 8h2M4 16h2M10 16h10M14 6v4M6 14v4",
  stop: "M7 7h10v10H7z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  up: "M12 19V5M6 11l6-6 6 6",
};

// Makes an element. Attributes named on... are listeners, data... goes to the dataset, true and false switch. A list among
// the children stands for what is in it, and may be of any length, which arguments may not.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== undefined && child !== null) element.append(child);
  return element;
}

export function makeSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

export function icon(name) {
  return makeSvg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, makeSvg("path", { d: ICONS[name] }));
}

export function iconButton(name, label, onclick) {
  return make("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick }, icon(name));
}

export const byId = (id) => document.getElementById(id);

// Draws the icons that the page's own markup asks for.
export function drawIcons() {
  for (const element of document.querySelectorAll("[data-icon]")) element.prepend(icon(element.dataset.icon));
}

// Tells people who hear the page what has happened.
export function announce(text) {
  byId("announcer").textContent = text;
}

// Copies a text, and shows on the button that it is done.
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // pages of plain http have no clipboard
  }
  button.replaceChildren(icon("check"));
  announce("Copied");
  setTimeout(() => button.replaceChildren(icon("copy")), 1500);
}

function copyBySelection(text) {
  const area = make("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
