// Server-sent events out of bytes, however the network cut them
// (https://html.spec.whatwg.org/#event-stream-interpretation).

export class EventParser {
  #decoder = new TextDecoder();  // drops a byte order mark at the start, keeps halves of characters for the next bytes
  #line = "";
  #afterReturn = false;  // the last piece ended with \r: a \n that follows belongs to it
  #data = [];
  #type = "";

  // bytes: Uint8Array. Returns the events that are complete with them: [{type, data}].
  push(bytes) {
    const events = [];
    let text = this.#decoder.decode(bytes, {stream: true});
    if (text === "") return events;
    if (this.#afterReturn && text[0] === "\n") text = text.slice(1);
    this.#afterReturn = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    for (const line of lines) this.#take(line, events);
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#data.length > 0) events.push({type: this.#type || "message", data: this.#data.join("\n")});
      this.#data = [];
      this.#type = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;  // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    if (field === "event") this.#type = value;
  }
}

// The events of a fetch response, one after the other. An event that the end of the body cuts off is not given.
export async function* eventsOf(response) {
  const parser = new EventParser();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
