// What the browser keeps for this page. One that keeps nothing for it (cookies are blocked): the page's own memory.

class Memory {
  #items = new Map();

  getItem(name) {
    return this.#items.get(name) ?? null;
  }

  setItem(name, text) {
    this.#items.set(name, text);
  }

  removeItem(name) {
    this.#items.delete(name);
  }
}

function storage(name) {
  try {
    return window[name] ?? new Memory();
  } catch {
    return new Memory();
  }
}

export const lasting = storage("localStorage");
export const ofTheTab = storage("sessionStorage");
