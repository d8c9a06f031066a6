// How answers are drawn, how the page looks, and the key. What is not set is not sent: the model's own values hold.

import { forgetKey, storedKey } from "./api.js";
import { byId, make } from "./dom.js";
import { download } from "./sidebar.js";
import { exportConversations, listConversations, loadSettings, saveSettings } from "./store.js";

const SLIDERS = [
  { name: "temperature", title: "Temperature", min: 0, max: 2, step: 0.05, start: 1 },
  { name: "top_p", title: "Top-p", min: 0.05, max: 1, step: 0.05, start: 1 },
  { name: "max_tokens", title: "Most tokens of an answer", min: 16, max: 4096, step: 16, start: 512 },
];

export function buildSettings() {
  const body = byId("settings-body");
  byId("open-settings").addEventListener("click", () => {
    body.replaceChildren(systemField(), ...SLIDERS.map(sliderField), seedField(), appearanceField(), dataField());
    byId("settings").showModal();
  });
  byId("settings").addEventListener("click", (event) => {
    if (event.target === byId("settings")) byId("settings").close(); // beside it
  });
}

function change(name, value) {
  const settings = loadSettings();
  if (value === undefined) delete settings[name];
  else settings[name] = value;
  saveSettings(settings);
}

function systemField() {
  const area = make("textarea", { placeholder: "You are a helpful assistant.", oninput: () => change("system", area.value) });
  area.value = loadSettings().system;
  return make("label", { class: "field" }, "System prompt", area);
}

function sliderField({ name, title, min, max, step, start }) {
  const given = loadSettings()[name];
  const output = make("output");
  const slider = make("input", { type: "range", min, max, step, id: `set-${name}` });
  const reset = make("button", { type: "button", class: "quiet small" }, "Use the model's own");
  const show = (value) => {
    slider.value = value ?? start;
    output.textContent = value ?? "the model's own";
    slider.setAttribute("aria-valuetext", output.textContent);
    reset.hidden = value === undefined;
    slider.toggleAttribute("data-unset", value === undefined);
  };
  slider.addEventListener("input", () => {
    change(name, Number(slider.value));
    show(Number(slider.value));
  });
  reset.addEventListener("click", () => {
    change(name, undefined);
    show(undefined);
    slider.focus();
  });
  show(given);
  const head = make("div", { class: "field-head" }, make("label", { for: `set-${name}` }, title), output);
  return make("div", { class: "field" }, head, slider, reset);
}

function seedField() {
  const input = make("input", { type: "number", min: 0, step: 1, placeholder: "another one each time", inputmode: "numeric" });
  input.value = loadSettings().seed ?? "";
  input.addEventListener("input", () => change("seed", input.value === "" || !input.checkValidity() ? undefined : Number(input.value)));
  return make("label", { class: "field" }, "Seed", input, make("span", { class: "note" }, "With a seed, the same conversation gets the same answer."));
}

function appearanceField() {
  const options = [["system", "System"], ["light", "Light"], ["dark", "Dark"]].map(([value, title]) => {
    const input = make("input", { type: "radio", name: "appearance", value, onchange: () => window.appearance.choose(value) });
    input.checked = window.appearance.chosen() === value;
    return make("label", {}, input, title);
  });
  const choices = make("div", { class: "choices", role: "radiogroup", "aria-label": "Appearance" }, ...options);
  return make("div", { class: "field" }, "Appearance", choices);
}

function dataField() {
  const all = () => download(exportConversations(listConversations().map(({ id }) => id)), "conversations");
  const row = make("div", { class: "row" }, make("button", { type: "button", class: "button", onclick: all }, "Export all conversations"));
  if (storedKey()) {
    const forget = () => {
      forgetKey();
      location.reload();
    };
    row.prepend(make("button", { type: "button", class: "quiet danger", onclick: forget }, "Forget the key"));
  }
  return make("div", { class: "field" }, "This browser", row);
}
