// The key: asked for when the server wants one, and again when it refuses what it was given.

import { ApiError, forgetKey, storeKey, storedKey } from "./api.js";
import { byId } from "./dom.js";

// Does something with the server; where it wants a key, asks for it and tries again.
// Returns what was done; null where nobody gave a key.
export async function withKey(action) {
  for (;;) {
    const key = storedKey();
    try {
      return await action();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      if (storedKey() !== key) continue; // another one was given meanwhile
      forgetKey();
      if (!(await askForKey(Boolean(key)))) return null;
    }
  }
}

let asking = null; // who asks while the question stands gets its answer too

function askForKey(wasRefused) {
  asking ??= openQuestion(wasRefused).finally(() => {
    asking = null;
  });
  return asking;
}

function openQuestion(wasRefused) {
  const dialog = byId("access");
  const message = byId("access-message");
  const input = byId("access-key");
  message.hidden = !wasRefused;
  message.textContent = "The server refused this key. Check it and try again.";
  input.value = "";
  input.toggleAttribute("aria-invalid", wasRefused);
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    byId("access-form").onsubmit = (event) => {
      event.preventDefault();
      storeKey(input.value.trim(), byId("access-keep").checked);
      dialog.close("given");
    };
    byId("access-cancel").onclick = () => dialog.close("");
    dialog.onclose = () => {
      const isGiven = dialog.returnValue === "given";
      dialog.returnValue = "";
      regainFocus();
      if (isGiven) document.dispatchEvent(new Event("key"));
      resolve(isGiven);
    };
  });
}

// A dialog that was closed by the mouse gives the focus back, but not the caret: what is typed then would be lost.
function regainFocus() {
  const element = document.activeElement;
  element.blur();
  element.focus();
}
