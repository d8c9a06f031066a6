"""GET /docs: a page that shows /openapi.json. It is whole in itself: no other host is asked for anything."""

from __future__ import annotations

from aiohttp import web

# What the page may do, whatever a description might try: run its own script, and ask this server.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


async def show_docs(_request: web.Request) -> web.Response:
    """Return the page; anyone may have it, the description that it loads needs a key where the server has keys."""
    return web.Response(
        text=_PAGE, content_type="text/html", charset="utf-8", headers={"Content-Security-Policy": _POLICY}
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>pagewire: API</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  code { font: 13px ui-monospace, monospace; }
  details { border: 1px solid #ddd; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
  summary { cursor: pointer; }
  .method { display: inline-block; min-width: 4.5rem; font-weight: 600; text-transform: uppercase; }
  table { border-collapse: collapse; margin: .5rem 0; width: 100%; }
  td { border-top: 1px solid #eee; padding: .2rem .6rem .2rem 0; vertical-align: top; }
  .error { color: #a00; }
  @media (prefers-color-scheme: dark) {
    body { background: #161616; color: #ddd; } details { border-color: #444; } td { border-color: #333; }
  }
</style>
<h1>pagewire</h1>
<p id="about"></p>
<form id="access"><label>API key, if the server has keys: <input id="key" type="password" autocomplete="off"></label>
<button>Load</button></form>
<p>The whole description is <a href="openapi.json"><code>openapi.json</code></a>.</p>
<main id="operations"></main>
<script>
"use strict";
const element = (name, text, parent) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const nameOf = (reference) => reference.split("/").pop();
const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map(typeOf).filter((type) => type !== "null").join(" | ");
  if (schema.type === "array") return "list of " + (typeOf(schema.items) || "anything");
  return Array.isArray(schema.type) ? schema.type.join(" | ") : schema.type || "anything";
};
const showFields = (schema, parent) => {
  const table = element("table", undefined, parent);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = element("tr", undefined, table);
    const needed = (schema.required || []).includes(name);
    element("code", name + (needed ? " (required)" : ""), element("td", undefined, row));
    element("td", typeOf(field), row);
    element("td", field.description || "", row);
  }
};
const showSchema = (title, schema, schemas, parent) => {
  if (!schema) return;
  const named = schema.$ref ? nameOf(schema.$ref) : undefined;
  element("strong", title + (named ? ": " + named : ""), parent);
  showFields(named ? schemas[named] : schema, parent);
};
const show = (api) => {
  const schemas = api.components.schemas;
  document.title = api.info.title + " " + api.info.version + ": API";
  document.getElementById("about").textContent = api.info.description;
  const main = document.getElementById("operations");
  main.replaceChildren();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const box = element("details", undefined, main);
      const line = element("summary", undefined, box);
      element("span", method, line).className = "method";
      element("code", path, line);
      element("span", "  " + operation.summary, line);
      for (const each of operation.parameters || []) element("p", each.name + ": " + (each.description || ""), box);
      const body = operation.requestBody && operation.requestBody.content["application/json"];
      showSchema("Body", body && body.schema, schemas, box);
      const answer = (operation.responses["200"].content || {})["application/json"];
      showSchema("Answer", answer && answer.schema, schemas, box);
      const errors = Object.entries(operation.responses).filter(([status]) => status !== "200");
      const table = element("table", undefined, box);
      for (const [status, described] of errors) {
        const row = element("tr", undefined, table);
        element("td", status, row);
        element("td", described.description, row);
      }
    }
  }
  element("h2", "Shapes", main);
  for (const [name, schema] of Object.entries(schemas)) {
    const box = element("details", undefined, main);
    element("code", name, element("summary", undefined, box));
    if (schema.description) element("p", schema.description, box);
    showFields(schema, box);
  }
};
const load = async () => {
  const key = document.getElementById("key").value;
  const answer = await fetch("openapi.json", key ? { headers: { Authorization: "Bearer " + key } } : {});
  if (answer.ok) return show(await answer.json());
  const main = document.getElementById("operations");
  main.replaceChildren();
  element("p", "The description can't be read: status " + answer.status + ".", main).className = "error";
};
document.getElementById("access").addEventListener("submit", (event) => { event.preventDefault(); load(); });
load();
</script>
"""
