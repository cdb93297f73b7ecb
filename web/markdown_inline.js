// The inline part of markdown.js: emphasis after CommonMark's delimiter stack (https://spec.commonmark.org, "An
// algorithm for parsing nested emphasis and links"), over a linked list so that wrapping costs nothing.

const MAX_NESTING = 16;   // of emphasis and links in each other
const MAX_URL = 2000;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE_URL = /https?:\/\/[^\s<>"'`\\^{|}]{1,2000}/y;

// The address if a link may lead there: absolute, http or https. Else null.
export function safeHref(text) {
  if (text.length > MAX_URL || /[\0-\x20\x7f]/.test(text)) return null;
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
}

class List {
  constructor() {
    this.head = {node: null};
    this.head.next = this.head.previous = this.head;
  }
  push(node) {
    const item = {node, previous: this.head.previous, next: this.head};
    item.previous.next = item;
    this.head.previous = item;
    return item;
  }
  static remove(item) {
    item.previous.next = item.next;
    item.next.previous = item.previous;
  }
  // Takes what lies between two items out of the list, as an array.
  static takeBetween(from, to) {
    const nodes = [];
    for (let item = from.next; item !== to; item = item.next) nodes.push(item.node);
    from.next = to;
    to.previous = from;
    return nodes;
  }
}

const depthOf = (nodes) => nodes.reduce((most, node) => Math.max(most, node.depth ?? 0), 0);

// Neighbouring texts become one; what is empty goes.
function tidy(nodes) {
  const out = [];
  for (const node of nodes) {
    const last = out[out.length - 1];
    if (node.type !== "text") {
      out.push(node);
    } else if (last && last.type === "text") {
      last.text += node.text;
    } else if (node.text !== "") {
      out.push({type: "text", text: node.text});
    }
  }
  return out;
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.list = new List();
    this.delimiters = [];  // {item, mark, count, original, opens, closes}
    this.brackets = [];    // {item, delimiters, active}
    this.lastRun = new Map();  // length of a run of backticks -> where the last one begins
    for (const run of text.matchAll(/`+/g)) this.lastRun.set(run[0].length, run.index);
  }

  parse() {
    while (this.at < this.text.length) this.step();
    this.emphasise(0);
    return tidy(List.takeBetween(this.list.head, this.list.head));
  }

  literal(text) {
    return this.list.push({type: "text", text});
  }

  step() {
    const plain = /[^\\`*_~[\]!<\nh]+/y;
    plain.lastIndex = this.at;
    const run = plain.exec(this.text);
    if (run) {
      this.literal(run[0]);
      this.at += run[0].length;
      return;
    }
    const c = this.text[this.at];
    if (c === "\\") return this.escape();
    if (c === "`") return this.code();
    if (c === "*" || c === "_" || c === "~") return this.delimiter(c);
    if (c === "[") return this.openBracket("[");
    if (c === "!" && this.text[this.at + 1] === "[") return this.openBracket("![");
    if (c === "]") return this.closeBracket();
    if (c === "<") return this.angle();
    if (c === "h") return this.bareUrl();
    if (c === "\n") {
      this.list.push({type: "break"});
    } else {
      this.literal(c);
    }
    ++this.at;
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "\n") {
      this.list.push({type: "break"});
      this.at += 2;
    } else if (ESCAPABLE.test(next)) {
      this.literal(next);
      this.at += 2;
    } else {
      this.literal("\\");
      ++this.at;
    }
  }

  code() {
    const run = /`+/y;
    run.lastIndex = this.at;
    const mark = run.exec(this.text)[0];
    const begin = this.at + mark.length;
    let end = -1;
    if (this.lastRun.get(mark.length) >= begin) {
      const runs = /`+/g;
      runs.lastIndex = begin;
      for (let found = runs.exec(this.text); found; found = runs.exec(this.text)) {
        if (found[0].length !== mark.length) continue;
        end = found.index;
        break;
      }
    }
    if (end < 0) {
      this.literal(mark);
      this.at = begin;
      return;
    }
    let text = this.text.slice(begin, end).replace(/\n/g, " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "") text = text.slice(1, -1);
    this.list.push({type: "code", text});
    this.at = end + mark.length;
  }

  delimiter(mark) {
    let end = this.at;
    while (this.text[end] === mark) ++end;
    const count = end - this.at;
    const before = this.at === 0 ? " " : this.text[this.at - 1];
    const after = end === this.text.length ? " " : this.text[end];
    const leftFlanking =
        !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const rightFlanking =
        !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    let opens = leftFlanking;
    let closes = rightFlanking;
    if (mark === "_") {
      opens = leftFlanking && (!rightFlanking || PUNCTUATION.test(before));
      closes = rightFlanking && (!leftFlanking || PUNCTUATION.test(after));
    }
    const item = this.literal(this.text.slice(this.at, end));
    this.at = end;
    if (mark === "~" && count !== 2) return;
    if (opens || closes) this.delimiters.push({item, mark, count, original: count, opens, closes});
  }

  openBracket(text) {
    this.brackets.push({item: this.literal(text), delimiters: this.delimiters.length, active: true});
    this.at += text.length;
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const target = bracket?.active ? this.destination(this.at + 1) : null;
    if (!target) {
      this.literal("]");
      ++this.at;
      return;
    }
    this.emphasise(bracket.delimiters);
    const inline = tidy(List.takeBetween(bracket.item, this.list.head));
    List.remove(bracket.item);
    const depth = depthOf(inline) + 1;
    const href = safeHref(target.href);
    if (href === null) {  // shown as it was written
      this.list.push({type: "text", text: bracket.item.node.text});
      for (const node of inline) this.list.push(node);
      this.literal(this.text.slice(this.at, target.end));
    } else {
      this.list.push({type: "link", href, inline: inline.length > 0 ? inline : [{type: "text", text: href}], depth});
      for (const outer of this.brackets) outer.active = false;  // no link inside a link
      this.brackets = [];
    }
    this.at = target.end;
  }

  // "(address "title")" at a place: {href, end}, or null.
  destination(at) {
    const form = /\([ \n]{0,20}(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,500}\)){0,2000}))(?:[ \n]{1,20}(?:"[^"]{0,500}"|'[^']{0,500}'))?[ \n]{0,20}\)/y;
    form.lastIndex = at;
    const found = form.exec(this.text);
    return found ? {href: found[1] ?? found[2] ?? "", end: at + found[0].length} : null;
  }

  angle() {
    const form = /<(https?:\/\/[^\s<>]{1,2000})>/y;
    form.lastIndex = this.at;
    const found = form.exec(this.text);
    const href = found && safeHref(found[1]);
    if (href) return this.link(href, found[1], found[0].length);
    this.literal("<");
    ++this.at;
  }

  bareUrl() {
    BARE_URL.lastIndex = this.at;
    const before = this.at === 0 ? " " : this.text[this.at - 1];
    const found = /[\p{L}\p{N}]/u.test(before) ? null : BARE_URL.exec(this.text);
    if (found) {
      // What ends a sentence or a bracket around the address is not part of it, nor is emphasis.
      let shown = found[0].replace(/\].*$/, "").replace(/[*_~.,:;!?]+$/, "");
      if (shown.endsWith(")") && !shown.includes("(")) shown = shown.replace(/[).,:;!?]+$/, "");
      const href = safeHref(shown);
      if (href) return this.link(href, shown, shown.length);
    }
    this.literal("h");
    ++this.at;
  }

  link(href, shown, length) {
    this.list.push({type: "link", href, inline: [{type: "text", text: shown}], depth: 1});
    this.at += length;
  }

  // Pairs the delimiters from `bottom` on; those left over stay text.
  emphasise(bottom) {
    const open = [];       // those that may still open, outermost first
    for (let i = bottom; i < this.delimiters.length; ++i) {
      const closer = this.delimiters[i];
      while (closer.closes && closer.count > 0) {
        const opener = this.openerFor(closer, open);
        if (!opener) break;
        this.wrap(opener, closer);
        if (opener.count === 0) open.pop();
      }
      if (closer.opens && closer.count > 0) open.push(closer);
    }
    this.delimiters.length = Math.min(this.delimiters.length, bottom);
  }

  // The nearest opener that fits; those above it, which nothing can close any more, are dropped. Looks only as far as
  // nesting goes, so that many openers without a closer cost no more than they should.
  openerFor(closer, open) {
    for (let k = open.length - 1; k >= Math.max(0, open.length - 2 * MAX_NESTING); --k) {
      const opener = open[k];
      if (opener.mark !== closer.mark) continue;
      const eitherBoth = opener.closes || closer.opens;
      const multiple = (opener.original + closer.original) % 3 === 0 &&
          !(opener.original % 3 === 0 && closer.original % 3 === 0);
      if (eitherBoth && multiple && closer.mark !== "~") continue;
      open.length = k + 1;
      return opener;
    }
    return null;
  }

  wrap(opener, closer) {
    const width = closer.mark === "~" || (opener.count >= 2 && closer.count >= 2) ? 2 : 1;
    const type = closer.mark === "~" ? "del" : width === 2 ? "strong" : "em";
    opener.count -= width;
    closer.count -= width;
    opener.item.node.text = opener.item.node.text.slice(width);
    closer.item.node.text = closer.item.node.text.slice(width);
    const inline = tidy(List.takeBetween(opener.item, closer.item));
    const depth = depthOf(inline) + 1;
    const put = (node) => {
      const item = {node, previous: closer.item.previous, next: closer.item};
      item.previous.next = item;
      closer.item.previous = item;
    };
    if (depth <= MAX_NESTING) {
      put({type, inline, depth});
    } else {
      const mark = closer.mark.repeat(width);
      put({type: "text", text: mark});
      for (const node of inline) put(node);
      put({type: "text", text: mark});
    }
  }
}

export function parseInline(text) {
  return new InlineParser(text).parse();
}
