// Code, emphasis and links within a line. What is no mark stands for itself. How far a mark may reach is bounded, and a
// run of backticks is tried at its begin alone: a text of many marks that never end would else hold up the page.

import { make } from "./dom.js";

const MAX_DEPTH = 6;
const MARK = new RegExp(
  [
    "(?<escaped>\\\\[\\\\`*_{}\\[\\]()#+\\-.!|~>])",
    "(?<!`)(?<ticks>`+)(?<code>[^`]|[^`].{0,2000}?[^`])\\k<ticks>(?!`)",
    "(?<strong>\\*\\*|__)(?=\\S)(?<bold>.{1,2000}?\\S|\\S)\\k<strong>",
    "(?<!\\w)_(?=\\S)(?<low>[^_]{1,2000}?)_(?!\\w)",
    "\\*(?=\\S)(?<italic>[^*]{0,2000}?[^*\\s])\\*",
    "~~(?=\\S)(?<struck>.{1,2000}?)~~",
    "!?\\[(?<label>[^\\]]{0,1000})\\]\\((?<target>[^()\\s]*(?:\\([^()\\s]*\\)[^()\\s]*)*)(?:\\s+\"[^\"]*\")?\\)",
    "(?<bare>https?:\\/\\/[^\\s<>()\\[\\]\"'`]*[^\\s<>()\\[\\]\"'`.,;:!?])",
    "(?<line>(?: {2,100}|\\\\)?\\n)",
  ].join("|"),
  "gsu",
);

// Returns the nodes of a text.
export function inline(text, depth = 0) {
  if (depth > MAX_DEPTH) return [text];
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(MARK)) {
    if (found.index > last) nodes.push(text.slice(last, found.index));
    nodes.push(nodeOf(found, depth));
    last = found.index + found[0].length;
  }
  if (last < text.length) nodes.push(text.slice(last));
  return nodes;
}

function nodeOf({ 0: whole, groups }, depth) {
  const inner = (text) => inline(text, depth + 1);
  if (groups.escaped) return whole.slice(1);
  if (groups.code !== undefined) return make("code", {}, groups.code.replace(/^ (.*\S.*) $/su, "$1"));
  if (groups.bold !== undefined) return make("strong", {}, inner(groups.bold));
  if (groups.low !== undefined) return make("em", {}, inner(groups.low));
  if (groups.italic !== undefined) return make("em", {}, inner(groups.italic));
  if (groups.struck !== undefined) return make("s", {}, inner(groups.struck));
  if (groups.target !== undefined) return link(groups.target, inner(groups.label || groups.target), whole);
  if (groups.bare) return link(groups.bare, [groups.bare], whole);
  return make("br");
}

// A link leads to the web or to a mail program. Anything else (javascript:, data:) is text, and pictures are links:
// a page that loaded them would tell their host that the answer was read.
function link(target, children, whole) {
  if (!/^(https?:\/\/|mailto:)/iu.test(target)) return whole;
  return make("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, children);
}
