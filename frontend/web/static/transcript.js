// How messages look. What they do is handed in.

import { copyText, iconButton, make } from "./dom.js";
import { showMarkdown } from "./markdown.js";

// A message as it is shown. `update` takes its present state, also while an answer comes.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.element = make("li", { class: "message", data: { role: message.role } });
    this.parts = message.role === "user" ? this.makeQuestion() : this.makeAnswer();
    this.update(actions.isRunning(message));
  }

  makeQuestion() {
    const text = make("div", { class: "text" });
    const edit = iconButton("edit", "Edit this message", () => this.openEditor());
    const copy = iconButton("copy", "Copy this message", () => copyText(this.message.content, copy));
    const tools = make("div", { class: "tools" }, copy, edit);
    this.element.append(make("h2", { class: "hidden" }, "You"), text, tools);
    return { text, tools };
  }

  makeAnswer() {
    const thoughts = make("div", { class: "text" });
    const summary = make("summary", {}, "Reasoning");
    const thinking = make("details", { class: "thinking" }, summary, thoughts);
    const text = make("div", { class: "markdown" });
    const calls = make("div");
    const waiting = make("div", { class: "waiting", role: "img", "aria-label": "Waiting for the answer" });
    waiting.append(make("span"), make("span"), make("span"));
    const failure = make("div", { class: "failure", role: "alert" });
    const figures = make("span", { class: "figures" });
    const copy = iconButton("copy", "Copy this answer", () => copyText(this.message.content, copy));
    const redo = iconButton("redo", "Answer again", () => this.actions.regenerate(this.message));
    const tools = make("div", { class: "tools" }, copy, redo);
    const foot = make("div", { class: "message-foot" }, tools, figures);
    this.element.append(make("h2", { class: "hidden" }, "Answer"), thinking, text, calls, waiting, failure, foot);
    return { thoughts, summary, thinking, text, calls, waiting, failure, figures, foot };
  }

  update(isRunning) {
    const { message, parts } = this;
    if (message.role === "user") {
      parts.text.textContent = message.content;
      return;
    }
    const isEmpty = !message.content && !message.calls?.length;
    parts.thinking.hidden = !message.reasoning;
    parts.summary.textContent = isRunning && isEmpty ? "Reasoning …" : "Reasoning";
    parts.thoughts.textContent = message.reasoning ?? "";
    showMarkdown(parts.text, message.content);
    parts.calls.replaceChildren(...(message.calls ?? []).map(toolCall));
    parts.waiting.hidden = !(isRunning && isEmpty && !message.reasoning);
    parts.failure.hidden = !message.error;
    parts.failure.textContent = message.error ?? "";
    parts.foot.hidden = isRunning && isEmpty;
    parts.figures.textContent = figuresOf(message, isRunning);
    parts.foot.firstChild.hidden = isRunning;
  }

  openEditor() {
    const { text, tools } = this.parts;
    const field = make("textarea", { "aria-label": "Edit this message" });
    field.value = this.message.content;
    const close = () => {
      form.replaceWith(text, tools);
      tools.lastChild.focus();
    };
    const form = make("form", { class: "edit" }, field);
    const cancel = make("button", { type: "button", class: "quiet", onclick: close }, "Cancel");
    form.append(make("div", { class: "row" }, cancel, make("button", { type: "submit", class: "button primary" }, "Send")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.actions.edit(this.message, field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    text.replaceWith(form);
    tools.remove();
    field.focus();
  }
}

function toolCall({ name, text }) {
  const head = make("p", {}, "Calls ", make("code", {}, name || "a tool"));
  return make("div", { class: "tool-call" }, head, make("pre", { tabindex: 0, "aria-label": "Arguments", role: "region" }, indented(text)));
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet, or no JSON
  }
}

// "128 tokens · 41.2 tokens/s · first token after 0.21 s"
function figuresOf(message, isRunning) {
  const parts = [];
  const { tokens, first_s: firstS, last_s: lastS } = message;
  if (tokens) parts.push(`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`);
  if (tokens > 1 && lastS > firstS) parts.push(`${rate((tokens - 1) / (lastS - firstS))} tokens/s`);
  if (firstS !== undefined && !isRunning) parts.push(`first token after ${firstS < 10 ? firstS.toFixed(2) : firstS.toFixed(0)} s`);
  if (message.finish === "length") parts.push("cut off at the limit of tokens");
  if (message.isStopped) parts.push("stopped");
  else if (!isRunning && !message.finish && !message.error) parts.push("broken off"); // the page was left meanwhile
  return parts.join(" · ");
}

const rate = (value) => (value < 100 ? value.toFixed(1) : value.toFixed(0));
