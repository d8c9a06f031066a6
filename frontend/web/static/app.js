// The page as a whole: its two views, the models to choose from, and keys that hold everywhere.

import { withKey } from "./access.js";
import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { byId, drawIcons, make } from "./dom.js";
import { EngineView } from "./engine.js";
import { buildSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { loadSettings, saveSettings } from "./store.js";

drawIcons();
let sidebar = null;
const chat = new Chat(() => sidebar?.draw());
const engine = new EngineView();
sidebar = new Sidebar({
  open(id) {
    show("chat");
    chat.open(id);
  },
  renamed: (id, title) => chat.renamed(id, title),
  deleted: (id) => chat.deleted(id),
  current: () => chat.conversation.id,
});
buildSettings();

function show(view) {
  const isChat = view === "chat";
  byId("chat").hidden = !isChat;
  byId("engine").hidden = isChat;
  for (const [id, isShown] of [["show-chat", isChat], ["show-engine", !isChat]]) {
    if (isShown) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  document.title = isChat ? "pagewire" : "Engine - pagewire";
  if (isChat) engine.stop();
  else engine.start();
  const wanted = isChat ? "#chat" : "#engine";
  if (location.hash !== wanted) history.replaceState(null, "", wanted);
}

function begin() {
  show("chat");
  chat.open(null);
  sidebar.draw();
  sidebar.setOpen(false);
  byId("prompt").focus();
}

async function listModels() {
  const select = byId("model");
  try {
    const list = await withKey(() => getJson("v1/models"));
    if (list === null) document.addEventListener("key", listModels, { once: true });
    const names = (list?.data ?? []).map((card) => card.id);
    const settings = loadSettings();
    if (names.length && !names.includes(settings.model)) saveSettings({ ...settings, model: names[0] });
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name.split("/").at(-1))));
    select.value = loadSettings().model;
  } catch (error) {
    select.replaceChildren(make("option", { value: "" }, error.message));
  }
}

byId("model").addEventListener("change", () => saveSettings({ ...loadSettings(), model: byId("model").value }));
byId("show-chat").addEventListener("click", () => {
  show("chat");
  sidebar.setOpen(false);
});
byId("show-engine").addEventListener("click", () => {
  show("engine");
  sidebar.setOpen(false);
});
byId("new-conversation").addEventListener("click", begin);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  byId("main").focus();
});
addEventListener("hashchange", () => show(location.hash === "#engine" ? "engine" : "chat"));
addEventListener("storage", ({ key }) => {
  chat.writtenElsewhere(key);
  sidebar.draw();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (sidebar.isOpen) sidebar.setOpen(false);
    else if (!byId("chat").hidden) chat.stop();
  } else if (event.ctrlKey && event.altKey && event.code === "KeyN") {
    event.preventDefault();
    begin();
  } else if (event.altKey && !event.ctrlKey && ["Digit1", "Digit2"].includes(event.code)) {
    event.preventDefault();
    show(event.code === "Digit1" ? "chat" : "engine");
  }
});

show(location.hash === "#engine" ? "engine" : "chat");
if (!byId("chat").hidden) byId("prompt").focus();
listModels();
