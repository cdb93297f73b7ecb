import assert from "node:assert/strict";
import test from "node:test";
import {EventParser, eventsOf} from "../../web/sse.js";

const bytesOf = (text) => new TextEncoder().encode(text);

function parsePieces(pieces) {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

const STREAM =
    "\uFEFF: a comment\ndata: {\"a\":1}\n\nevent: error\r\ndata: two\r\ndata:lines é 漢 😀\r\n\r\nid: 7\rdata\rdata:  x\r\r" +
    "retry: 5\n\nunknown: y\ndata: [DONE]\n\ndata: cut off";
const EVENTS = [
  {type: "message", data: '{"a":1}'},
  {type: "error", data: "two\nlines é 漢 😀"},
  {type: "message", data: "\n x"},
  {type: "message", data: "[DONE]"},
];

test("a stream in one piece gives its events, without what is not complete", () => {
  assert.deepEqual(parsePieces([bytesOf(STREAM)]), EVENTS);
});

test("a cut between any two bytes changes nothing", () => {
  const bytes = bytesOf(STREAM);
  for (let cut = 0; cut <= bytes.length; ++cut) {
    assert.deepEqual(parsePieces([bytes.subarray(0, cut), bytes.subarray(cut)]), EVENTS, `cut at ${cut}`);
  }
});

test("pieces of any size change nothing", () => {
  const bytes = bytesOf(STREAM);
  for (let size = 1; size <= 7; ++size) {
    const pieces = [];
    for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.subarray(at, at + size));
    assert.deepEqual(parsePieces(pieces), EVENTS, `pieces of ${size}`);
  }
});

test("bytes that are no UTF-8 become replacement characters and end nothing", () => {
  const events = parsePieces([bytesOf("data: a"), new Uint8Array([0xff, 0xc3]), bytesOf("\n\ndata: b\n\n")]);
  assert.deepEqual(events.map((event) => event.data), ["a\uFFFD\uFFFD", "b"]);
});

test("events without data are none", () => {
  assert.deepEqual(parsePieces([bytesOf("event: ping\n\n\n\n: x\n\n")]), []);
});

test("a response's events come one by one, and its body is let go when the reader leaves", async () => {
  let cancelled = false;
  const body = new ReadableStream({
    pull: (controller) => controller.enqueue(bytesOf("data: 1\n\ndata: 2\n\n")),
    cancel: () => { cancelled = true; },
  });
  const seen = [];
  for await (const event of eventsOf({body})) {
    seen.push(event.data);
    if (seen.length === 3) break;
  }
  assert.deepEqual(seen, ["1", "2", "1"]);
  assert.ok(cancelled);
});
