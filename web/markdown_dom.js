// Shows the tree of markdown.js as DOM nodes. Text only ever becomes text nodes.
import {copyButton, el} from "./dom.js";
import {parseMarkdown} from "./markdown.js";

function inlineNodes(inline) {
  return inline.map((node) => {
    switch (node.type) {
      case "text": return document.createTextNode(node.text);
      case "break": return el("br");
      case "code": return el("code", {}, node.text);
      case "link":
        return el("a", {href: node.href, rel: "noopener noreferrer nofollow", target: "_blank", title: node.href},
                  inlineNodes(node.inline));
      default: return el(node.type, {}, inlineNodes(node.inline));  // strong, em, del
    }
  });
}

function codeBlock(block) {
  return el("figure", {class: "code"},
            el("figcaption", {}, el("span", {}, block.language.slice(0, 40) || "text"),
               copyButton("Copy the code", () => block.text)),
            el("pre", {tabindex: "0"}, el("code", {}, block.text)));
}

function table(block) {
  const cell = (name) => (inline, column) =>
      el(name, {class: block.align[column] ? `align-${block.align[column]}` : null}, inlineNodes(inline));
  return el("div", {class: "table", tabindex: "0"},
            el("table", {}, el("thead", {}, el("tr", {}, block.head.map(cell("th")))),
               el("tbody", {}, block.rows.map((row) => el("tr", {}, row.map(cell("td")))))));
}

function listItem(item) {
  const box = item.checked === null ?
      null :
      el("input",
         {type: "checkbox", disabled: true, checked: item.checked, "aria-label": item.checked ? "done" : "to do"});
  // A paragraph alone in an item needs no space around it.
  const tight = item.blocks.filter((block) => block.type === "paragraph").length <= 1;
  const content = item.blocks.flatMap(
      (block) => tight && block.type === "paragraph" ? inlineNodes(block.inline) : [blockNode(block)]);
  return el("li", {class: box ? "task" : null}, box, content);
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      return el(`h${Math.min(6, block.level + 2)}`, {class: `h${block.level}`}, inlineNodes(block.inline));
    case "code": return codeBlock(block);
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, block.blocks.map(blockNode));
    case "list":
      return el(block.ordered ? "ol" : "ul", {start: block.ordered && block.start !== 1 ? block.start : null},
                block.items.map(listItem));
    case "table": return table(block);
    default: return el("p", {}, inlineNodes(block.inline));
  }
}

// Keeps an element showing a text that grows: blocks that stay as they were are not made again, so that a selection or
// a scrolled table in them survives.
export class MarkdownView {
  #shown = [];  // sources

  constructor(element) {
    this.element = element;
  }

  update(text) {
    const blocks = parseMarkdown(text);
    let same = 0;
    while (same < blocks.length && same < this.#shown.length && blocks[same].source === this.#shown[same]) ++same;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map(blockNode));
    this.#shown = blocks.map((block) => block.source);
  }
}
