// Markdown to elements: what models write, not all that there is. Text stays text; HTML in it is shown as it stands.
// Blocks are made one by one and kept while their source is the same, so that a long answer grows at its end alone.

import { copyText, iconButton, make } from "./dom.js";
import { inline } from "./markdown_inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;
const MAX_DEPTH = 8; // of quotes and lists within each other

// Shows a text in an element; called again with a longer one, it changes what has changed.
export function showMarkdown(element, text) {
  const blocks = split(text);
  const shown = element.blocks ?? [];
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same] === keyOf(blocks[same])) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  for (const block of blocks.slice(same)) element.append(render(block, 0));
  element.blocks = blocks.map(keyOf);
}

const keyOf = (block) => `${block.kind} ${block.language ?? block.rank ?? ""} ${block.lines.join("\n")}`;

// Cuts a text into blocks: {kind, lines, ...}.
function split(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at);
    blocks.push(block);
    at = block.end;
  }
  rankHeadings(blocks);
  return blocks;
}

// Ranks follow each other without a gap, below that of the answer itself, whatever marks a model chose.
function rankHeadings(blocks) {
  const open = [];
  for (const block of blocks) {
    if (block.kind !== "heading") continue;
    const marks = HEADING.exec(block.lines[0])[1].length;
    while (open.length && open.at(-1) >= marks) open.pop();
    open.push(marks);
    block.rank = Math.min(open.length + 2, 6);
  }
}

function blockAt(lines, at) {
  const line = lines[at];
  if (isFence(line)) return fenced(lines, at);
  if (HEADING.test(line)) return { kind: "heading", lines: [line], end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", lines: [line], end: at + 1 };
  if (QUOTE.test(line)) return taken("quote", lines, at, (next) => QUOTE.test(next));
  if (ITEM.test(line)) return list(lines, at);
  if (line.includes("|") && isDivider(lines[at + 1] ?? "", line)) return taken("table", lines, at, (next) => next.includes("|"));
  return taken("paragraph", lines, at, (next) => next.trim() && !beginsAnother(next));
}

// A divider has as many cells as the head above it, and so both are bounded.
const isDivider = (line, head) => line.length < 1000 && DIVIDER.test(line.trim()) && cellsOf(line).length === cellsOf(head).length;

// Behind backticks no other one may follow: that is code within a line.
function isFence(line) {
  const [, mark, rest] = FENCE.exec(line) ?? [];
  return mark !== undefined && !(mark[0] === "`" && rest.includes("`"));
}

const beginsAnother = (line) => isFence(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function taken(kind, lines, at, goesOn) {
  let end = at + 1;
  while (end < lines.length && goesOn(lines[end])) end += 1;
  return { kind, lines: lines.slice(at, end), end };
}

function fenced(lines, at) {
  const [, mark, rest] = FENCE.exec(lines[at]);
  const [language] = rest.trim().split(/\s/);
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().slice(mark.length).replaceAll(mark[0], ""))) end += 1;
  return { kind: "code", language, lines: lines.slice(at + 1, end), end: Math.min(end + 1, lines.length) };
}

function list(lines, at) {
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (ITEM.test(line) || /^\s{2,}\S/.test(line)) continue;
    const isGap = !line.trim() && end + 1 < lines.length && (ITEM.test(lines[end + 1]) || /^\s{2,}\S/.test(lines[end + 1]));
    const isLazy = line.trim() && lines[end - 1].trim() && !beginsAnother(line);
    if (!isGap && !isLazy) break;
  }
  return { kind: "list", lines: lines.slice(at, end), end };
}

function render(block, depth) {
  switch (block.kind) {
    case "code":
      return code(block);
    case "heading": {
      const [, marks, text] = HEADING.exec(block.lines[0]);
      return make(`h${block.rank}`, { data: { marks: marks.length } }, inline(text.trimEnd().replace(/\s#+$/, "")));
    }
    case "rule":
      return make("hr");
    case "quote":
      return make("blockquote", {}, within(block.lines.map((line) => QUOTE.exec(line)[1]), depth));
    case "list":
      return renderList(block.lines, depth);
    case "table":
      return table(block.lines);
    default:
      return make("p", {}, inline(block.lines.map((line) => line.trimStart()).join("\n")));
  }
}

function within(lines, depth) {
  const text = lines.join("\n");
  return depth < MAX_DEPTH ? split(text).map((block) => render(block, depth + 1)) : [text];
}

function renderList(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(marker);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length + 1) items.push([found[3]]);
    else items.at(-1).push(line.slice(Math.min(line.length - line.trimStart().length, indent.length + marker.length + 1)));
  }
  const attributes = isOrdered ? { start: parseInt(marker, 10) } : {};
  return make(isOrdered ? "ol" : "ul", attributes, items.map((item) => renderItem(item, depth)));
}

function renderItem(lines, depth) {
  const task = /^\[([ xX])\]\s+(.*)$/.exec(lines[0]);
  const [first, ...others] = within(task ? [task[2], ...lines.slice(1)] : lines, depth);
  // Of a tight item the paragraph is no more than its text.
  const nodes = first?.tagName === "P" ? [...first.childNodes] : [first];
  if (!task) return make("li", {}, nodes, others);
  return make("li", { class: "task" }, task[1] === " " ? "☐ " : "☑ ", nodes, others);
}

function code({ language, lines }) {
  const text = lines.join("\n");
  const copy = iconButton("copy", "Copy the code", () => copyText(text, copy));
  const head = make("div", { class: "code-head" }, make("span", {}, language || "text"), copy);
  // What is wide is scrolled: by keys too, so that it takes the focus.
  const body = make("pre", { tabindex: 0, role: "region", "aria-label": `Code, ${language || "text"}` }, make("code", {}, text));
  return make("div", { class: "code" }, head, body);
}

function table(lines) {
  const [head, , ...rows] = lines.map(cellsOf);
  const body = rows.map((row) => make("tr", {}, row.slice(0, head.length).map((cell) => make("td", {}, inline(cell)))));
  const first = make("tr", {}, head.map((cell) => make("th", { scope: "col" }, inline(cell))));
  const whole = make("table", {}, make("thead", {}, first), make("tbody", {}, body));
  return make("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": "Table" }, whole);
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return cells.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
