// One answer as it comes: asks the server, and writes what it says into the message.

import { ApiError, events } from "./api.js";

// Returns the body of a request for the answer to `messages`.
export function bodyOf(messages, settings) {
  const said = messages
    .filter(({ role, content }) => role === "user" || content)
    .map(({ role, content }) => ({ role, content }));
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = {
    model: settings.model || undefined,
    messages: [...system, ...said],
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (typeof settings[name] === "number") body[name] = settings[name];
  }
  return body;
}

// Fills `message` until its end; `changed` is called at each change. Errors end up in the message, but those of keys.
export async function receive(message, body, signal, changed) {
  const start = performance.now();
  const elapsed = () => (performance.now() - start) / 1000;
  try {
    for await (const chunk of events("v1/chat/completions", { body, signal })) {
      take(message, chunk, elapsed());
      changed();
    }
  } catch (error) {
    if (error.name === "AbortError") message.isStopped = true;
    else if (error instanceof ApiError && error.status === 401) throw error;
    else message.error = error.message || String(error);
  }
}

function take(message, chunk, now) {
  const tokens = chunk.usage?.completion_tokens;
  if (tokens) {
    message.first_s ??= now;
    if (tokens > (message.tokens ?? 0)) message.last_s = now;
    message.tokens = tokens;
  }
  for (const { delta, finish_reason: finish } of chunk.choices ?? []) {
    if (finish) message.finish = finish;
    message.content += delta?.content ?? "";
    const thought = delta?.reasoning_content ?? delta?.reasoning;
    if (thought) message.reasoning = (message.reasoning ?? "") + thought;
    for (const call of delta?.tool_calls ?? []) takeCall(message, call);
  }
}

function takeCall(message, { index, function: called }) {
  message.calls ??= [];
  const call = (message.calls[index ?? 0] ??= { name: "", text: "" });
  call.name += called?.name ?? "";
  call.text += called?.arguments ?? "";
}
