// The chat: the conversation that is open, what is sent, and the answers that come, also for those that are not open.

import { withKey } from "./access.js";
import { bodyOf, receive } from "./answer.js";
import { announce, byId, make } from "./dom.js";
import { isNameOf, loadConversation, loadSettings, newId, saveConversation } from "./store.js";
import { MessageView } from "./transcript.js";

const SUGGESTIONS = ["Explain paged attention in three sentences", "Write a haiku about waiting", "Show quicksort in Python"];
const SAVE_EVERY_MS = 2000;
const MAX_ANNOUNCED_CHARS = 1000;
const REST = 3; // times as long as an answer took to draw, until it is drawn again

export class Chat {
  // `onchange` is called when the list of conversations may have changed.
  constructor(onchange) {
    this.onchange = onchange;
    this.runs = new Map(); // conversation id -> {controller, conversation, message, isDue, drawMs}
    this.views = new Map(); // message id -> MessageView, of the open conversation
    this.hint = byId("hint").textContent;
    this.listen();
    for (const text of SUGGESTIONS) {
      byId("suggestions").append(make("button", { type: "button", onclick: () => this.send(text) }, text));
    }
    this.open(null);
  }

  listen() {
    const prompt = byId("prompt");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.send(prompt.value)) prompt.value = "";
      fit(prompt);
    });
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("composer").requestSubmit();
      }
    });
    prompt.addEventListener("input", () => fit(prompt));
    byId("stop").addEventListener("click", () => this.stop());
    addEventListener("pagehide", () => this.runs.forEach(({ conversation }) => this.save(conversation)));
  }

  // Opens a conversation by its id; null begins a new one.
  open(id) {
    const running = this.runs.get(id)?.conversation;
    this.conversation = running ?? (id && loadConversation(id)) ?? { id: newId(), title: "", messages: [] };
    this.show();
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
  }

  show() {
    const { messages, title } = this.conversation;
    this.views = new Map(messages.map((message) => [message.id, this.viewOf(message)]));
    byId("transcript").replaceChildren(...[...this.views.values()].map((view) => view.element));
    byId("welcome").hidden = messages.length > 0;
    byId("chat-title").textContent = title || "New conversation";
    this.showRun();
  }

  viewOf(message) {
    return new MessageView(message, {
      isRunning: (each) => this.isRunning(each),
      regenerate: (each) => this.answerFrom(this.conversation.messages.indexOf(each)),
      edit: (each, text) => this.edit(each, text),
    });
  }

  isRunning(message) {
    return [...this.runs.values()].some((run) => run.message === message);
  }

  showRun() {
    const isRunning = this.runs.has(this.conversation.id);
    const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
    byId("send").hidden = isRunning;
    byId("stop").hidden = !isRunning;
    if (hadFocus) byId("prompt").focus();
  }

  // Sends a text; returns whether it was taken.
  send(text) {
    if (!text.trim() || this.runs.has(this.conversation.id)) return false;
    this.conversation.messages.push({ id: newId(), role: "user", content: text });
    this.answerFrom(this.conversation.messages.length);
    return true;
  }

  edit(message, text) {
    if (this.runs.has(this.conversation.id)) return;
    message.content = text;
    this.answerFrom(this.conversation.messages.indexOf(message) + 1);
  }

  // Answers what stands before message number `at`; what stood there and behind it is given up.
  async answerFrom(at) {
    const { conversation } = this;
    if (this.runs.has(conversation.id)) return;
    conversation.messages.length = at;
    conversation.title ||= titleOf(conversation.messages[0].content);
    const message = { id: newId(), role: "assistant", content: "" };
    const body = bodyOf(conversation.messages, loadSettings());
    conversation.messages.push(message);
    const run = { controller: new AbortController(), conversation, message, isDue: false, drawMs: 0 };
    this.runs.set(conversation.id, run);
    this.save(conversation);
    this.show();
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
    await this.follow(run, body);
  }

  async follow(run, body) {
    const { conversation, message, controller } = run;
    let savedAt = performance.now();
    const isWanted = () => this.runs.get(conversation.id) === run; // else the conversation was deleted
    const changed = () => {
      this.redrawSoon(run);
      if (performance.now() - savedAt < SAVE_EVERY_MS || !isWanted()) return;
      savedAt = performance.now();
      this.save(conversation);
    };
    try {
      const done = await withKey(async () => (await receive(message, body, controller.signal, changed)) ?? true);
      if (done === null) message.error = "The server needs an API key.";
    } catch (error) {
      message.error = error.message;
    }
    if (!isWanted()) return;
    this.runs.delete(conversation.id);
    this.save(conversation);
    if (conversation.id !== this.conversation.id) return;
    this.redraw(run);
    this.showRun();
    announce(message.error ?? message.content.slice(0, MAX_ANNOUNCED_CHARS));
  }

  // At most once a frame, however fast tokens come; a long answer less often, so that the page is there for other things.
  redrawSoon(run) {
    if (run.isDue) return;
    run.isDue = true;
    const draw = () => {
      run.isDue = false;
      const start = performance.now();
      this.redraw(run);
      run.drawMs = performance.now() - start;
    };
    setTimeout(() => requestAnimationFrame(draw), REST * run.drawMs);
  }

  redraw({ conversation, message }) {
    if (conversation.id !== this.conversation.id) return;
    const scroller = byId("scroller");
    const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    this.views.get(message.id)?.update(this.isRunning(message));
    if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
  }

  // Ends the answer of the open conversation; returns whether there was one.
  stop() {
    const run = this.runs.get(this.conversation.id);
    run?.controller.abort();
    return Boolean(run);
  }

  save(conversation) {
    try {
      saveConversation(conversation);
      byId("hint").textContent = this.hint;
      byId("hint").classList.remove("error");
    } catch {
      byId("hint").textContent = "This browser keeps no more of this conversation: it is too long.";
      byId("hint").classList.add("error");
    }
    this.onchange();
  }

  // Another tab has written: where this one has nothing under way, what is open goes on from there.
  writtenElsewhere(name) {
    const { id } = this.conversation;
    if (!isNameOf(name, id) || this.runs.has(id) || byId("transcript").querySelector("form")) return;
    this.conversation = loadConversation(id) ?? this.conversation;
    this.show();
  }

  renamed(id, title) {
    for (const each of [this.conversation, this.runs.get(id)?.conversation]) {
      if (each?.id === id) each.title = title;
    }
    byId("chat-title").textContent = this.conversation.title || "New conversation";
  }

  deleted(id) {
    this.runs.get(id)?.controller.abort();
    this.runs.delete(id);
    if (this.conversation.id === id) this.open(null);
  }
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
