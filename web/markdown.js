// Markdown as models write it -> a tree of plain values. Knows nothing of a document; markdown_dom.js shows the tree.
// Every input is a text: what is no Markdown, or too deep, is shown as it stands. Time is linear in the text's length.
//
// Blocks: {type: "paragraph" | "heading", level, inline} {type: "code", language, text, open} {type: "rule"}
//         {type: "quote", blocks} {type: "list", ordered, start, items: [{checked, blocks}]}
//         {type: "table", align: [...], head: [inline...], rows: [[inline...]...]}
// Top-level blocks have `source`, their text.
// Inline: {type: "text", text} {type: "code", text} {type: "break"} {type: "strong" | "em" | "del", inline}
//         {type: "link", href, inline}
import {parseInline} from "./markdown_inline.js";

const MAX_DEPTH = 8;         // of lists and quotes in each other
const MAX_COLUMNS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITER_CELL = /^:?-+:?$/;

export function parseMarkdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\0/g, "\uFFFD").split("\n");
  return parseBlocks(lines, 0);
}

const indentOf = (line) => line.length - line.trimStart().length;
const blank = (line) => line.trim() === "";
const expandTabs = (line) => line.replace(/^[ \t]+/, (space) => space.replace(/\t/g, "    "));

function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      ++at;
      continue;
    }
    const begin = at;
    const [block, next] = parseBlock(lines, at, depth);
    at = next;
    if (depth === 0) block.source = lines.slice(begin, at).join("\n");
    blocks.push(block);
  }
  return blocks;
}

// One block that begins at lines[at], which is not blank: [block, where the next may begin].
function parseBlock(lines, at, depth) {
  const line = expandTabs(lines[at]);
  const fence = FENCE.exec(line);
  if (fence) return parseCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    return [{type: "heading", level: heading[1].length, inline: parseInline(withoutClosing(heading[2] ?? ""))}, at + 1];
  }
  if (RULE.test(line)) return [{type: "rule"}, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return parseQuote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return parseList(lines, at, depth);
  if (startsTable(lines, at)) return parseTable(lines, at);
  return parseParagraph(lines, at, depth);
}

// A heading's text without the "##" that may close it.
function withoutClosing(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") --end;
  return end === 0 || /\s/.test(trimmed[end - 1]) ? trimmed.slice(0, end).trimEnd() : trimmed;
}

function parseCode(lines, at, [, indent, mark, info]) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  const text = [];
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) {
    text.push(lines[end].slice(Math.min(indent.length, indentOf(lines[end]))));
    ++end;
  }
  const open = end >= lines.length;  // cut off, or still being written
  return [{type: "code", language: info.trim().split(/\s+/)[0], text: text.join("\n"), open}, open ? end : end + 1];
}

function parseQuote(lines, at, depth) {
  const inner = [];
  let end = at;
  while (end < lines.length && !blank(lines[end])) {
    if (!QUOTE.test(lines[end]) && interrupts(lines, end, depth)) break;
    inner.push(lines[end].replace(QUOTE, ""));
    ++end;
  }
  return [{type: "quote", blocks: parseBlocks(inner, depth + 1)}, end];
}

// Items of one kind of mark at about one indentation; what is indented beyond an item's mark belongs to it.
function parseList(lines, at, depth) {
  const first = ITEM.exec(expandTabs(lines[at]));
  const ordered = /\d/.test(first[2][0]);
  const kind = first[2].slice(-1);
  const base = first[1].length;
  const list = {type: "list", ordered, start: ordered ? Number.parseInt(first[2], 10) : 1, items: []};
  let end = at;
  while (end < lines.length) {
    const line = expandTabs(lines[end]);
    const item = ITEM.exec(line);
    if (!item || item[2].slice(-1) !== kind || Math.abs(item[1].length - base) > 1 || RULE.test(line)) break;
    const inner = [line.slice(item[0].length)];
    end = collectItem(lines, end + 1, item, inner, depth);
    const task = /^\[([ xX])\][ \t]+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    list.items.push({checked: task ? task[1] !== " " : null, blocks: parseBlocks(inner, depth + 1)});
  }
  return [list, end];
}

// The lines behind an item's first that are its own, without their indentation, into `inner`; returns where they end.
function collectItem(lines, at, item, inner, depth) {
  const width = Math.min(item[0].length, item[1].length + item[2].length + 1);
  const least = item[1].length + 2;
  let end = at;
  let gap = false;
  while (end < lines.length) {
    const line = expandTabs(lines[end]);
    if (blank(line)) {
      gap = true;
      ++end;
      continue;
    }
    const indent = indentOf(line);
    if (indent < least && (gap || interrupts(lines, end, depth))) break;
    if (gap) inner.push("");
    gap = false;
    inner.push(line.slice(Math.min(indent, width)));
    ++end;
  }
  return end;
}

function cellsOf(line) {
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  const cells = [];
  let cell = "";
  let code = false;
  for (let i = 0; i < text.length; ++i) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      ++i;
    } else if (text[i] === "|" && !code) {
      cells.push(cell);
      cell = "";
    } else {
      if (text[i] === "`") code = !code;
      cell += text[i];
    }
  }
  if (cell.trim() !== "") cells.push(cell);
  return cells.map((each) => each.trim());
}

function startsTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  if (!/^[ \t|:-]+$/.test(lines[at + 1])) return false;
  const marks = cellsOf(lines[at + 1]);
  return marks.length > 0 && marks.length <= MAX_COLUMNS && marks.every((cell) => DELIMITER_CELL.test(cell)) &&
      cellsOf(lines[at]).length === marks.length;
}

function parseTable(lines, at) {
  const align = cellsOf(lines[at + 1]).map((cell) => {
    const left = cell.startsWith(":");
    const right = cell.endsWith(":");
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
  const row = (line) => {
    const cells = cellsOf(line).map(parseInline);
    return align.map((_, column) => cells[column] ?? []);
  };
  const table = {type: "table", align, head: row(lines[at]), rows: []};
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && !blank(lines[end]); ++end) table.rows.push(row(lines[end]));
  return [table, end];
}

// Whether the line ends a paragraph before it.
function interrupts(lines, at, depth) {
  const line = expandTabs(lines[at]);
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth >= MAX_DEPTH) return startsTable(lines, at);
  return QUOTE.test(line) || ITEM.test(line) || startsTable(lines, at);
}

function parseParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !blank(lines[end]) && !interrupts(lines, end, depth)) ++end;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return [{type: "paragraph", inline: parseInline(text)}, end];
}
