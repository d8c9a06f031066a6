// What runs and what waits: how far the prompt and the output of each request are.

import { make } from "./dom.js";

const HEADS = ["Request", "State", "Prompt", "Output", "Blocks"];

// A table of the requests of all cores, a line where there are none. Its frame stays, and with it the focus and how far
// it was scrolled.
export class RequestsTable {
  constructor(parent) {
    const head = make("tr", {}, ...HEADS.map((title) => make("th", { scope: "col" }, title)));
    this.body = make("tbody");
    const table = make("table", { class: "requests" }, make("thead", {}, head), this.body);
    this.frame = make("div", { class: "requests-frame", tabindex: 0, role: "region", "aria-label": "Table of requests" }, table);
    this.empty = make("p", { class: "empty" }, "No request runs or waits.");
    parent.append(this.frame, this.empty);
    this.show([]);
  }

  show(cores) {
    const rows = cores.flatMap((core, rank) => (core?.requests ?? []).map((request) => rowOf(request, cores.length > 1 ? rank : null)));
    this.body.replaceChildren(...rows);
    this.frame.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
  }
}

function rowOf(request, rank) {
  const { arrival, child, status } = request;
  const name = `${rank === null ? "" : `${rank}/`}${arrival}${child ? `.${child}` : ""}`;
  const computed = Math.min(request.num_computed_tokens, request.num_prompt_tokens);
  const cells = [
    `#${name}`,
    make("span", { class: "pill", data: { status } }, status),
    progress("Prompt tokens computed", computed, request.num_prompt_tokens, request.num_cached_tokens),
    progress("Output tokens", request.num_output_tokens, request.max_output_tokens, 0),
    String(request.num_blocks),
  ];
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

function progress(label, done, whole, cached) {
  const track = make("div", {
    class: "track",
    role: "progressbar",
    "aria-label": label,
    "aria-valuemin": 0,
    "aria-valuemax": whole,
    "aria-valuenow": done,
  });
  const fill = (kind, part) => {
    const bar = make("div", { class: kind });
    bar.style.width = `${whole ? Math.min(100, (part / whole) * 100) : 0}%`;
    track.append(bar);
  };
  fill("fill", done);
  if (cached) fill("fill cached", Math.min(cached, done));
  const words = `${done.toLocaleString("en")} / ${whole.toLocaleString("en")}`;
  return make("div", { class: "progress" }, track, make("span", {}, words));
}
