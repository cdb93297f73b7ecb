// One answer on its way: asks, puts together what comes, and tells about it.
import {addChunk, newAnswer} from "./answer.js";
import {ApiError, streamChat} from "./api.js";

export class Run {
  #controller = new AbortController();

  // onChange(run): more has come, at most once a frame. onEnd(run): it is over, once.
  constructor(conversation, message, body, {onChange, onEnd}) {
    Object.assign(this, {conversation, message, onChange, onEnd});
    this.answer = newAnswer(body.model);
    message.answers.push(this.answer);
    message.chosen = message.answers.length - 1;
    this.body = body;
    this.pending = false;
  }

  async start() {
    const begin = performance.now();
    try {
      for await (const chunk of streamChat(this.body, this.#controller.signal)) {
        addChunk(this.answer, chunk, (performance.now() - begin) / 1000);
        this.changed();
      }
      this.answer.finish ??= "stop";
    } catch (error) {
      if (error.name === "AbortError") {
        this.answer.finish = "stopped";
      } else {
        const known =
            error instanceof ApiError ? error : new ApiError("server", "The page failed.", "Reload it and try again.");
        if (known !== error) console.error(error);
        this.answer.error = {kind: known.kind, message: known.message, advice: known.advice};
      }
    }
    this.over = true;
    this.onEnd(this);
  }

  stop() {
    this.#controller.abort();
  }

  // What takes long to show is shown less often, so that a long answer does not stall the page.
  changed() {
    if (this.pending) return;
    this.pending = true;
    const show = () => {
      this.pending = false;
      if (this.over) return;
      const begin = performance.now();
      this.onChange(this);
      this.cost = performance.now() - begin;
    };
    if (this.cost > 12) {
      setTimeout(show, 5 * this.cost);
    } else {
      requestAnimationFrame(show);
    }
  }
}
