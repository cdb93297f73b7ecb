// The renderer over a document that knows only what it may use: elements and text nodes.
import assert from "node:assert/strict";
import test from "node:test";

class Node {
  constructor(name) {
    Object.assign(this, {name, attributes: {}, childNodes: [], listeners: {}});
  }
  setAttribute(key, value) {
    assert.ok(!/^on|^style$/.test(key), `${this.name} ${key}`);
    this.attributes[key] = value;
  }
  addEventListener(type, listener) { this.listeners[type] = listener; }
  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? new Text(node) : node;
      child.parent = this;
      this.childNodes.push(child);
    }
  }
  get lastChild() { return this.childNodes[this.childNodes.length - 1]; }
  remove() { this.parent.childNodes = this.parent.childNodes.filter((node) => node !== this); }
  set innerHTML(_) { throw new Error("innerHTML"); }
  get text() { return this.childNodes.map((node) => node.text).join(""); }
}
class Text {
  constructor(text) { this.text = text; }
  remove() { this.parent.childNodes = this.parent.childNodes.filter((node) => node !== this); }
}
globalThis.document = {
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  createTextNode: (text) => new Text(text),
};
const {MarkdownView} = await import("../../web/markdown_dom.js");

const ALLOWED = new Set([
  "div", "p",  "br",     "code",       "pre",   "a",      "strong", "em",   "del", "h3",         "h4",
  "h5",  "h6", "figure", "figcaption", "span",  "button", "svg",    "path", "hr",  "blockquote", "ul",
  "ol",  "li", "input",  "table",      "thead", "tbody",  "tr",     "th",   "td"
]);

function* elementsOf(node) {
  if (!(node instanceof Node)) return;
  yield node;
  for (const child of node.childNodes) yield* elementsOf(child);
}

function shown(text) {
  const view = new MarkdownView(new Node("div"));
  view.update(text);
  return view.element;
}

test("no text becomes an element or an attribute that acts", () => {
  const hostile = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))",
    "![x](https://evil.example/p.png)", "```<script>\nx\n```", "```\" onclick=\"x\ny\n```",
    "[a](https://b.example/\"onmouseover=\"x)", "| <b> |\n|-|\n| <i> |", "<iframe src=//x>", "- [x] <svg onload=x>",
    "# <h1 style=x>", "[x](data:text/html;base64,AAAA)"
  ];
  for (const text of [...hostile, hostile.join("\n\n")]) {
    for (const element of elementsOf(shown(text))) {
      assert.ok(ALLOWED.has(element.name), `${element.name} out of ${text}`);
      assert.ok(!("src" in element.attributes), text);
      if (element.name !== "a") continue;
      assert.match(element.attributes.href, /^https?:\/\//);
      assert.match(element.attributes.rel, /\bnoopener\b/);
      assert.equal(element.attributes.target, "_blank");
    }
  }
  assert.equal(shown("<b>x</b>").text, "<b>x</b>");
});

test("a code block shows its text as it is", () => {
  const [figure] = shown("```html\n<b>&amp;</b>\n```").childNodes;
  const pre = figure.childNodes[1];
  assert.equal(pre.text, "<b>&amp;</b>");
  assert.equal(figure.childNodes[0].childNodes[0].text, "html");
});

test("a text that grows keeps the elements that did not change, and ends as if it had come at once", () => {
  const text =
      "# Title\n\nSome *words*.\n\n- a\n- b\n\n```js\nlet x;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end.";
  const view = new MarkdownView(new Node("div"));
  let heading = null;
  for (let length = 1; length <= text.length; ++length) {
    view.update(text.slice(0, length));
    const first = view.element.childNodes[0];
    if (length === text.indexOf("\n") + 2) heading = first;
    if (heading) assert.equal(first, heading);
  }
  const outline = (node) =>
      (node instanceof Node ? `${node.name}(${node.childNodes.map(outline).join("")})` : node.text);
  assert.equal(outline(view.element), outline(shown(text)));
});
