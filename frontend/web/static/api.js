// The server: where it is, the key that it may need, its JSON and its server-sent events.

import { lasting, ofTheTab } from "./browser_storage.js";

const NAME = "pagewire.key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const storedKey = () => ofTheTab.getItem(NAME) || lasting.getItem(NAME) || "";

export function storeKey(key, isKept) {
  forgetKey();
  (isKept ? lasting : ofTheTab).setItem(NAME, key);
}

export function forgetKey() {
  ofTheTab.removeItem(NAME);
  lasting.removeItem(NAME);
}

// Asks below the page's own address, so that a proxy may show the server under any path.
async function ask(path, options = {}) {
  const key = storedKey();
  // A header can't carry it, so that no server knows it.
  if (/[^\x20-\x7e\xa0-\xff]/.test(key)) throw new ApiError(401, "The key has letters that no key has.");
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server can't be reached.");
  }
  if (!response.ok) throw new ApiError(response.status, await reasonOf(response));
  return response;
}

async function reasonOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

export async function getJson(path) {
  return (await ask(path)).json();
}

// Yields the events of a stream, parsed, until [DONE]; a stream that breaks off before that is an error.
export async function* events(path, { body, signal } = {}) {
  const options = body
    ? { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal }
    : { signal };
  const reader = (await ask(path, options)).body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) throw new ApiError(0, "The connection ended before the answer did.");
      pending += decoder.decode(value, { stream: true });
      const blocks = pending.split("\n\n");
      pending = blocks.pop();
      for (const block of blocks) {
        const data = dataOf(block);
        if (data === "[DONE]") return;
        if (data) yield checked(JSON.parse(data));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection to the server was lost.");
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

function checked(event) {
  if (event.error) throw new ApiError(event.error.code || 500, event.error.message || "The engine failed.");
  return event;
}
