// The list of conversations, and the sidebar that narrow windows hide.

import { byId, iconButton, make } from "./dom.js";
import { deleteConversation, exportConversations, listConversations, renameConversation } from "./store.js";

export class Sidebar {
  constructor({ open, renamed, deleted, current }) {
    this.actions = { open, renamed, deleted, current };
    for (const button of document.querySelectorAll(".menu-button")) button.addEventListener("click", () => this.setOpen(true));
    byId("shade").addEventListener("click", () => this.setOpen(false));
    this.draw();
  }

  get isOpen() {
    return "open" in byId("sidebar").dataset;
  }

  setOpen(isOpen) {
    if (isOpen === this.isOpen) return;
    if (isOpen) byId("sidebar").dataset.open = "";
    else delete byId("sidebar").dataset.open;
    byId("shade").hidden = !isOpen;
    for (const button of document.querySelectorAll(".menu-button")) button.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? byId("show-chat") : [...document.querySelectorAll(".menu-button")].find((each) => each.offsetParent))?.focus();
  }

  draw() {
    if (byId("conversations").querySelector("input")) return; // somebody types a name
    const focused = document.activeElement?.closest?.(".conversation")?.dataset.id;
    byId("conversations").replaceChildren(...listConversations().map((entry) => this.item(entry)));
    if (focused) this.itemOf(focused)?.querySelector("button").focus();
  }

  itemOf(id) {
    return [...byId("conversations").children].find((item) => item.dataset.id === id);
  }

  item({ id, title }) {
    const isCurrent = this.actions.current() === id;
    const name = make("button", { type: "button", class: "conversation-name", "aria-current": isCurrent ? "true" : undefined, title }, title);
    name.addEventListener("click", () => {
      this.actions.open(id);
      this.setOpen(false);
      this.draw();
    });
    const tools = make(
      "span",
      { class: "conversation-tools" },
      iconButton("edit", `Rename ${title}`, () => this.rename(id, title)),
      iconButton("download", `Export ${title}`, () => download(exportConversations([id]), title)),
      iconButton("trash", `Delete ${title}`, () => this.remove(id, title)),
    );
    return make("li", { class: "conversation", data: { id, ...(isCurrent ? { current: "" } : {}) } }, name, tools);
  }

  rename(id, title) {
    const input = make("input", { "aria-label": "New name", maxlength: 120 });
    input.value = title;
    const item = this.itemOf(id);
    item.replaceChildren(input);
    let isDone = false;
    const finish = (isTaken) => {
      if (isDone) return; // leaving the field by Enter takes the focus from it, which is a second end
      isDone = true;
      const chosen = input.value.trim();
      input.remove();
      if (isTaken && chosen) {
        renameConversation(id, chosen);
        this.actions.renamed(id, chosen);
      }
      this.draw();
      this.itemOf(id)?.querySelector("button").focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
      event.stopPropagation();
    });
    input.addEventListener("blur", () => finish(true));
    input.select();
    input.focus();
  }

  remove(id, title) {
    if (!confirm(`Delete "${title}"? It is kept nowhere else.`)) return;
    deleteConversation(id);
    this.actions.deleted(id);
    this.draw();
  }
}

export function download(conversations, title) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversations";
  const url = URL.createObjectURL(new Blob([JSON.stringify(conversations, null, 2)], { type: "application/json" }));
  make("a", { href: url, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
