// Lines over the last five minutes, with their last value in words.

import { make, makeSvg } from "./dom.js";

const SPAN_S = 300;
const LEAST_SPAN_S = 60; // shortly after the page was opened, for the first seconds to have some room
const WIDTH = 300;
const HEIGHT = 86;
const GRAPHS = [
  { name: "output", title: "Output tokens per second", show: (value) => round(value) },
  { name: "firstMs", title: "Time to first token", show: milliseconds },
  { name: "betweenMs", title: "Time between tokens", show: milliseconds },
  { name: "running", title: "Requests that run", show: (value) => round(value) },
  { name: "waiting", title: "Requests that wait", show: (value) => round(value) },
  { name: "kv", title: "KV pool in use", show: (value) => `${Math.round(value * 100)}%`, least: 1 },
];

export class Graphs {
  constructor(parent) {
    this.points = []; // [{at, figures}]
    this.graphs = GRAPHS.map((graph) => ({ ...graph, ...build(parent, graph.title) }));
  }

  add(at, figures) {
    this.points.push({ at, figures });
    while (this.points[0].at < at - SPAN_S) this.points.shift();
    const spanS = Math.max(LEAST_SPAN_S, at - this.points[0].at);
    for (const graph of this.graphs) draw(graph, this.points, at, spanS);
  }
}

function build(parent, title) {
  const value = make("b");
  const grid = makeSvg("path", { class: "grid", d: `M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` });
  const area = makeSvg("path", { class: "area" });
  const line = makeSvg("path", { class: "line" });
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, grid, area, line);
  const top = make("span");
  const from = make("span");
  const scale = make("div", { class: "scale" }, from, top, make("span", {}, "now"));
  const caption = make("figcaption", {}, make("span", {}, title), value);
  parent.append(make("figure", { class: "graph" }, caption, svg, scale));
  return { value, area, line, top, from, svg };
}

function draw(graph, points, now, spanS) {
  const values = points.map(({ at, figures }) => ({ at, value: figures[graph.name] }));
  // Where nothing was measured there is no value: the line goes on to the next one.
  const known = values.filter(({ value }) => value !== null);
  const most = Math.max(...known.map(({ value }) => value), graph.least ?? 0);
  const last = known.at(-1)?.value;
  graph.value.textContent = last === undefined ? "-" : graph.show(last);
  graph.top.textContent = known.length ? `highest ${graph.show(Math.max(...known.map(({ value }) => value)))}` : "";
  graph.svg.setAttribute("aria-label", `${graph.title}: ${graph.value.textContent}, ${graph.top.textContent || "nothing yet"}`);
  graph.from.textContent = spanS < 90 ? `${Math.round(spanS)} s ago` : `${Math.round(spanS / 60)} min ago`;
  const x = (at) => (((at - now + spanS) / spanS) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (most ? (value / most) * (HEIGHT - 4) : 0)).toFixed(1);
  const path = known.map(({ at, value }) => `${x(at)} ${y(value)}`).join("L");
  graph.line.setAttribute("d", path ? `M${path}h.01` : ""); // so that one point alone is a dot
  const isArea = known.length > 1;
  graph.area.setAttribute("d", isArea ? `M${path}L${x(known.at(-1).at)} ${HEIGHT}L${x(known[0].at)} ${HEIGHT}Z` : "");
}

function milliseconds(value) {
  return value < 1000 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

function round(value) {
  return value < 10 && value % 1 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}
