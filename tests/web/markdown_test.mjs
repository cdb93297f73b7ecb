import assert from "node:assert/strict";
import test from "node:test";
import {parseMarkdown} from "../../web/markdown.js";
import {parseInline, safeHref} from "../../web/markdown_inline.js";

// The tree in short: "p(a strong(b))".
function short(node) {
  if (Array.isArray(node)) return node.map(short).join(" ");
  const inner = (nodes) => nodes.map(short).join(" ");
  switch (node.type) {
    case "text": return node.text;
    case "break": return "/";
    case "code":
      return node.open === undefined ? `\`${node.text}\`` :
                                       `code[${node.language}](${node.text})${node.open ? "…" : ""}`;
    case "rule": return "hr";
    case "paragraph": return `p(${inner(node.inline)})`;
    case "heading": return `h${node.level}(${inner(node.inline)})`;
    case "quote": return `quote(${inner(node.blocks)})`;
    case "list":
      return `${node.ordered ? `ol${node.start}` : "ul"}(${node.items.map((item) => (
          `${item.checked === null ? "" : item.checked ? "[x]" : "[ ]"}${inner(item.blocks)}`)).join("; ")})`;
    case "table":
      return `table{${node.align.join(",")}}(${
              [node.head, ...node.rows].map((row) => row.map(inner).join("|")).join(" // ")})`;
    case "link": return `a<${node.href}>(${inner(node.inline)})`;
    default: return `${node.type}(${inner(node.inline)})`;
  }
}

const shows = (text, expected) => assert.equal(short(parseMarkdown(text)), expected, JSON.stringify(text));

test("blocks", () => {
  shows("one\ntwo\n\nthree", "p(one / two) p(three)");
  shows("# One #\n### Three\n#no\n####### no", "h1(One) h3(Three) p(#no / ####### no)");
  shows("# C#\n## a ##b", "h1(C#) h2(a ##b)");
  shows("---\n***\n- - -", "hr hr hr");
  shows("> a\n> b\nc\n\nd", "quote(p(a / b / c)) p(d)");
  shows("```js\nlet a = '<b>';\n```\nafter", "code[js](let a = '<b>';) p(after)");
  shows("~~~\n```\n~~~~", "code[](```)");
  shows("before\n```\nstill being written", "p(before) code[](still being written)…");
  shows("", "");
  shows("a\r\nb\rc", "p(a / b / c)");
});

test("lists", () => {
  shows("- a\n- b\n  - c\n    - d\n- e", "ul(p(a); p(b) ul(p(c) ul(p(d))); p(e))");
  shows("3. a\n4. b", "ol3(p(a); p(b))");
  shows("- a\n\n- b", "ul(p(a); p(b))");
  shows("1. a\n   ```py\n   x\n   ```\n2. b", "ol1(p(a) code[py](x); p(b))");
  shows("- [ ] a\n- [x] b", "ul([ ]p(a); [x]p(b))");
  shows("* a\n- b", "ul(p(a)) ul(p(b))");
  shows("text\n- a", "p(text) ul(p(a))");
  shows("- a\nlazy\n\nafter", "ul(p(a / lazy)) p(after)");
  shows("1986. A year", "ol1986(p(A year))");
});

test("tables", () => {
  shows("| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 |\n\nz", "table{left,right}(a|b // 1|`x|y` // 2|) p(z)");
  shows("a | b\n--- | :-:\n1 | 2", "table{,center}(a|b // 1|2)");
  shows("| a | b |\n| - |\n", "p(| a | b | / | - |)");
  shows("a \\| b | c\n-|-\n", "table{,}(a | b|c)");
});

const inline = (text, expected) => assert.equal(short(parseInline(text)), expected, JSON.stringify(text));

test("emphasis and code", () => {
  inline("a *b* **c** ***d*** ~~e~~", "a  em(b)   strong(c)   em(strong(d))   del(e)");
  inline("snake_case_name 2 * 3 * 4 **", "snake_case_name 2 * 3 * 4 **");
  inline("**a *b* c**", "strong(a  em(b)  c)");
  inline("*a **b***", "em(a  strong(b))");
  inline("**not closed", "**not closed");
  inline("`a*b*` ``c`d`` `open", "`a*b*`   `c`d`  `open");
  inline("\\*a\\* \\q", "*a* \\q");
  inline("~a~", "~a~");
});

test("links lead to http and https only", () => {
  inline("[a](https://b.example/c?d=e)", "a<https://b.example/c?d=e>(a)");
  inline("[**a**](http://b.example \"t\")", "a<http://b.example/>(strong(a))");
  inline("see https://a.example/b_c_d.", "see  a<https://a.example/b_c_d>(https://a.example/b_c_d) .");
  inline("<https://a.example>", "a<https://a.example/>(https://a.example)");
  inline("(https://a.example/x)", "( a<https://a.example/x>(https://a.example/x) )");
  inline("![alt](https://a.example/i.png)", "a<https://a.example/i.png>(alt)");
  inline("[a](b) [c]", "[a](b) [c]");
  inline(
      "[a [b](http://c.example) d](http://e.example)",
      "[a  a<http://c.example/>(b)  d](http://e.example)".replace(
          "](http://e.example)", "]( a<http://e.example/>(http://e.example) )"));
  for (const bad
           of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:x", "java\nscript:x", "data:text/html,x",
               "vbscript:x", "file:///etc/passwd", "//host/x", "/path", "#x", "blob:https://a/b", "http://",
               "https:// x", "\u0001javascript:x", "mailto:a@b.example", `https://a.example/${"x".repeat(3000)}`]) {
    assert.equal(safeHref(bad), null, bad);
    assert.doesNotMatch(short(parseInline(`[x](${bad})`)), /a<(?!https?:)/, bad);
  }
});

function* nodesOf(value) {
  if (Array.isArray(value)) {
    for (const each of value) yield* nodesOf(each);
  } else if (value !== null && typeof value === "object") {
    if (typeof value.type === "string") yield value;
    for (const each of Object.values(value)) yield* nodesOf(each);
  }
}

function depthOf(value) {
  if (Array.isArray(value)) return value.reduce((most, each) => Math.max(most, depthOf(each)), 0);
  if (value === null || typeof value !== "object") return 0;
  return 1 + depthOf(Object.values(value));
}

const TYPES = new Set(["text", "break", "code", "strong", "em", "del", "link", "paragraph", "heading", "rule", "quote",
                       "list", "table"]);

// Whatever comes: only known nodes, only safe links, no deep nesting (which would end the browser's stack).
function isHarmless(text) {
  const tree = parseMarkdown(text);
  for (const node of nodesOf(tree)) {
    assert.ok(TYPES.has(node.type), node.type);
    if (node.type === "link") assert.equal(safeHref(node.href), node.href);
    if (node.type === "heading") assert.ok(node.level >= 1 && node.level <= 6);
  }
  assert.ok(depthOf(tree) < 150, `${depthOf(tree)} deep: ${JSON.stringify(text.slice(0, 60))}`);
  return tree;
}

test("HTML is text", () => {
  for (const html
           of ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
               "<a href='javascript:x'>y</a>", "<!--x-->", "<style>*{}</style>", "&lt;b&gt; &#x6a;"]) {
    const tree = isHarmless(html);
    assert.equal(short(tree), `p(${html})`);
  }
});

// Each of these is quadratic or worse in a parser without care; at this size that is minutes, and the run's limit ends it.
test("hostile texts of 200,000 characters are parsed", () => {
  const size = 200000;
  const units = [
    "[",        "]",
    "[]",       "](",
    "[](",      "[a](",
    "![",       "*",
    "**a ",     "*a **b ",
    "_a ",      "~~",
    "`",        "` `` ```",
    "<",        "<http://",
    "http://",  "https://a.b/(",
    "> ",       ">",
    "- ",       "-\n",
    "1. ",      "|",
    "a|b\n",    "|-",
    "#",        "# ",
    "\\",       "\n",
    " ",        "\t",
    "( ",       "a*",
    "*a_ ",     "**a*b",
    "- a\n  ",  "```\n",
    "~~~",      "[a](http://b.c)",
    "\u0000",   "😀*",
    "[x](<",    "[x](a \"",
    "\ud800",   "***a** b* ",
    "`a``b```c"
  ];
  for (const unit of units) isHarmless(unit.repeat(Math.ceil(size / unit.length)).slice(0, size));
  isHarmless(`# ${" ".repeat(size)}x`);
  isHarmless(`[x](${" ".repeat(size)}`);
  isHarmless(`# ${"#".repeat(size)}x`);
  isHarmless(Array.from({length: 600}, (_, i) => "`".repeat(i + 1)).join(" "));
  isHarmless(Array.from({length: 600}, (_, i) => `${"  ".repeat(i)}- x`).join("\n"));
  isHarmless(`${"*a **b ".repeat(20000)}${"** *".repeat(20000)}`);
  isHarmless(`|${"a|".repeat(50000)}\n|${"-|".repeat(50000)}\n`);
});

test("random texts are harmless, and a text that grows ends as the whole does", () => {
  const seed = Number(process.env.SEED ?? 20240607);
  let state = seed;
  const random = (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
  const parts = [
    "*", "**",         "_", "`", "```", "\n",  "\n\n", "- ", "1. ", "> ",           "# ", "|",  "---", "[", "](",
    ")", "http://a.b", "a", " ", "  ",  "b c", "\\",   "~~", "<",   "javascript:x", "![", "\t", "é",   "😀"
  ];
  for (let i = 0; i < 3000; ++i) {
    const text = Array.from({length: 1 + random(40)}, () => parts[random(parts.length)]).join("");
    try {
      const tree = isHarmless(text);
      assert.deepEqual(parseMarkdown(text), tree);
    } catch (error) {
      error.message += ` (seed ${seed}, text ${JSON.stringify(text)})`;
      throw error;
    }
  }
});
