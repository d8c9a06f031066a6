// One core's KV pool, block by block: a canvas for the eye, words for everybody.

import { make } from "./dom.js";

const KINDS = ["free", "cached", "used", "shared"];
const WORDS = { free: "Free", cached: "Cached", used: "Used", shared: "Shared" };
const GAP = 2; // pixels between cells
const MAX_CELL = 22;
const MAX_HEIGHT = 260;

let numCards = 0;

export class CoreCard {
  // `rank` stands in its title where there are several.
  constructor(rank) {
    const id = `pool-${(numCards += 1)}`;
    this.core = null;
    this.note = make("p", { class: "note" });
    this.canvas = make("canvas", { class: "block-map", role: "img", "aria-describedby": `${id}-words`, "aria-label": "Map of the KV pool" });
    this.legend = make("ul", { class: "legend", id: `${id}-words` });
    const title = make("h2", { id }, rank === null ? "KV pool" : `KV pool of core ${rank}`);
    const head = make("div", { class: "card-head" }, title, this.note);
    this.element = make("section", { class: "card", "aria-labelledby": id }, head, this.canvas, this.legend);
  }

  show(core, blockSize) {
    this.canvas.hidden = this.legend.hidden = !core;
    if (!core) {
      this.note.textContent = "This core does not answer; it is being started again.";
      return;
    }
    this.core = core;
    const { blocks_per_cell: perCell, samples_per_cell: samples } = core;
    const cells = perCell > 1 ? `, ${perCell} in a cell${perCell > samples ? `, of which ${samples} are looked at` : ""}` : "";
    this.note.textContent = `${core.num_blocks.toLocaleString("en")} blocks of ${blockSize} tokens${cells}`;
    this.draw();
    this.showLegend(perCell > samples);
  }

  showLegend(isEstimate) {
    const counts = countsOf(this.core);
    this.legend.replaceChildren(
      ...KINDS.map((kind) => {
        const about = isEstimate && kind !== "used" ? "about " : "";
        const swatch = make("span", { class: "swatch", data: { kind } });
        return make("li", {}, swatch, `${WORDS[kind]} `, make("b", {}, `${about}${counts[kind].toLocaleString("en")}`));
      }),
    );
  }

  draw() {
    if (!this.core || !this.element.clientWidth) return;
    const { canvas } = this;
    const width = canvas.clientWidth;
    const cells = cellsOf(this.core);
    const { size, columns } = gridOf(width, cells.length);
    const height = Math.ceil(Math.ceil(cells.length / columns) * size);
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colours = KINDS.map((kind) => style.getPropertyValue(`--${kind}`));
    const gap = size > 6 ? GAP : 1;
    cells.forEach((cell, at) => {
      const left = (at % columns) * size;
      drawCell(context, cell, left, Math.floor(at / columns) * size, size - gap, colours);
    });
  }
}

// A cell of several blocks is filled in parts, from below: shared, used, cached, free.
function drawCell(context, cell, left, top, side, colours) {
  context.save();
  context.beginPath();
  context.roundRect(left, top, side, side, Math.min(3, side / 4));
  context.clip();
  let bottom = top + side;
  for (const kind of [3, 2, 1, 0]) {
    const part = (side * cell.filter((state) => state === kind).length) / cell.length;
    context.fillStyle = colours[kind];
    context.fillRect(left, bottom - part, side, part);
    bottom -= part;
  }
  context.restore();
}

// Returns the states that were looked at, cell by cell.
function cellsOf({ cells, samples_per_cell: samples }) {
  const states = Array.from(cells, Number);
  return Array.from({ length: Math.ceil(states.length / samples) }, (_, at) => states.slice(at * samples, (at + 1) * samples));
}

// Returns the largest cells with which all of them fit.
function gridOf(width, count) {
  let size = MAX_CELL;
  while (size > 3 && Math.ceil(count / Math.floor(width / size)) * size > MAX_HEIGHT) size -= 1;
  const columns = Math.max(1, Math.floor(width / size));
  return { size: width / columns, columns };
}

function countsOf({ cells, num_blocks: total, num_used_blocks: inUse }) {
  const seen = KINDS.map((_, kind) => cells.split(String(kind)).length - 1);
  const scaled = (kind) => (cells.length ? Math.round((seen[kind] * total) / cells.length) : 0);
  const shared = Math.min(scaled(3), inUse);
  const cached = Math.min(scaled(1), total - inUse);
  return { free: total - inUse - cached, cached, used: inUse - shared, shared };
}
