// Conversations and settings, kept in this browser alone. Beyond the limits, the oldest conversations go first.

import { lasting } from "./browser_storage.js";

const INDEX = "pagewire.conversations";
const ITEM = "pagewire.conversation.";
const SETTINGS = "pagewire.settings";
const MAX_CONVERSATIONS = 200;
const MAX_CHARS = 4_000_000; // browsers keep about five million a page

function read(name, otherwise) {
  try {
    return JSON.parse(lasting.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // not ours any more: somebody wrote something else there
  }
}

// [{id, title, updated, size}], the latest first.
export const listConversations = () => read(INDEX, []);

export function loadConversation(id) {
  const entry = listConversations().find((each) => each.id === id);
  const messages = read(ITEM + id, null);
  return entry && messages ? { id, title: entry.title, messages } : null;
}

// Whether a conversation's messages are kept under a name.
export const isNameOf = (name, id) => name === ITEM + id;

export function saveConversation({ id, title, messages }) {
  const text = JSON.stringify(messages);
  if (text.length > MAX_CHARS) throw new RangeError("this one alone is too much"); // it costs no other one its place
  const others = listConversations().filter((entry) => entry.id !== id);
  let index = [{ id, title, updated: Date.now(), size: text.length }, ...others];
  index = withinLimits(index);
  for (;;) {
    try {
      lasting.setItem(ITEM + id, text);
      lasting.setItem(INDEX, JSON.stringify(index));
      return;
    } catch (error) {
      if (index.length === 1) throw error; // this one alone is too much for the browser
      remove(index.pop().id);
    }
  }
}

function withinLimits(index) {
  let total = 0;
  const kept = [];
  for (const entry of index) {
    total += entry.size;
    if (kept.length === 0 || (kept.length < MAX_CONVERSATIONS && total <= MAX_CHARS)) kept.push(entry);
    else remove(entry.id);
  }
  return kept;
}

export function renameConversation(id, title) {
  const index = listConversations().map((entry) => (entry.id === id ? { ...entry, title } : entry));
  lasting.setItem(INDEX, JSON.stringify(index));
}

export function deleteConversation(id) {
  remove(id);
  lasting.setItem(INDEX, JSON.stringify(listConversations().filter((entry) => entry.id !== id)));
}

function remove(id) {
  lasting.removeItem(ITEM + id);
}

export function exportConversations(ids) {
  return ids.map(loadConversation).filter(Boolean).map(({ id, title, messages }) => ({ id, title, messages }));
}

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (part) => part.toString(36)).join("");

export const loadSettings = () => ({ model: "", system: "", ...read(SETTINGS, {}) });

export const saveSettings = (settings) => lasting.setItem(SETTINGS, JSON.stringify(settings));
