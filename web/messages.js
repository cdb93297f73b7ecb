// The messages of a conversation as elements.
import {ending, summary} from "./answer.js";
import {chosenAnswer} from "./conversation.js";
import {copyButton, el, iconButton} from "./dom.js";
import {MarkdownView} from "./markdown_dom.js";

function readableJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {  // not complete yet
    return text;
  }
}

function growWithText(area) {
  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
  };
  area.addEventListener("input", fit);
  return fit;
}

// One answer, which may still be coming. actions: see MessagesView.
class AnswerView {
  constructor(message, index, actions) {
    this.message = message;
    this.index = index;
    this.actions = actions;
    this.thoughts = el("div", {class: "thoughts"});
    this.thoughtsView = new MarkdownView(this.thoughts);
    this.thoughtsTitle = el("summary", {}, "Reasoning");
    this.reasoning = el("details", {class: "fold", hidden: true}, this.thoughtsTitle, this.thoughts);
    this.text = el("div", {class: "markdown"});
    this.textView = new MarkdownView(this.text);
    this.waiting = el("p", {class: "waiting"}, el("span"), el("span"), el("span"));
    this.calls = el("div", {class: "calls"});
    this.foot = el("div", {class: "answer-foot"});
    this.element = el("article", {class: "message assistant", "aria-label": "Answer"}, this.reasoning, this.text,
                      this.waiting, this.calls, this.foot);
  }

  // `last`: nothing follows it; only there can it be made again.
  update(running, last) {
    const answer = chosenAnswer(this.message);
    const begun = answer.content !== "" || answer.reasoning !== "" || answer.toolCalls.length > 0;
    this.element.setAttribute("aria-busy", running ? "true" : "false");
    this.reasoning.hidden = answer.reasoning === "";
    this.thoughtsTitle.textContent = running && answer.content === "" ? "Reasoning…" : "Reasoning";
    this.thoughtsView.update(answer.reasoning);
    this.textView.update(answer.content);
    this.waiting.hidden = !running || begun;
    this.updateCalls(answer, running, last);
    this.foot.replaceChildren(...this.footParts(answer, running, last));
  }

  updateCalls(answer, running, last) {
    const open = [...this.calls.querySelectorAll("details")].map((each) => each.open);
    const typed = [...this.calls.querySelectorAll("textarea")].map((each) => each.value);
    const answerable = !running && last && answer.toolCalls.length > 0;
    const results = [];
    this.calls.replaceChildren(...answer.toolCalls.map((call, i) => {
      const fold = el("details", {class: "fold", open: open[i]},
                      el("summary", {}, "Calls ", el("code", {}, call.name || "…")),
                      el("pre", {tabindex: "0"}, el("code", {}, readableJson(call.arguments))));
      if (!answerable) return fold;
      const area = el("textarea", {rows: "2", class: "mono", "aria-label": `Result of ${call.name}`,
                                   placeholder: `What ${call.name} returns`});
      area.value = typed[i] ?? "";
      results.push({call, area});
      return el("div", {}, fold, area);
    }));
    if (!answerable) return;
    this.calls.append(el("button", {type: "button", class: "button", onclick: () => this.actions.sendResults(
        results.map(({call, area}) => ({role: "tool", callId: call.id, name: call.name, content: area.value})))},
        results.length === 1 ? "Send the result" : "Send the results"));
  }

  footParts(answer, running, last) {
    const parts = [];
    if (answer.error) parts.push(this.errorBox(answer.error, last));
    const reason = running ? "" : answer.finish === null && !answer.error ? "Interrupted." : ending(answer);
    const facts = [reason, summary(answer)].filter((text) => text !== "").join(" ");
    const buttons = el("div", {class: "answer-buttons"});
    if (!running) {
      const {answers, chosen} = this.message;
      if (answers.length > 1) {
        buttons.append(
            iconButton(
                "left", "The answer before", () => this.actions.choose(this.index, chosen - 1),
                {disabled: chosen === 0}),
            el("span", {class: "variant"}, `${chosen + 1} / ${answers.length}`),
            iconButton(
                "right", "The next answer", () => this.actions.choose(this.index, chosen + 1),
                {disabled: chosen === answers.length - 1}));
      }
      if (answer.content !== "") buttons.append(copyButton("Copy the answer", () => answer.content));
      if (last && !answer.error)
        buttons.append(iconButton("retry", "Answer again", () => this.actions.regenerate(this.index)));
    }
    parts.push(el("div", {class: "answer-line"}, el("span", {class: "facts"}, facts), buttons));
    return parts;
  }

  errorBox(error, last) {
    return el(
        "div", {class: "error-box"}, el("p", {}, el("strong", {}, error.message), " ", error.advice),
        error.kind === "key" &&
            el("button", {type: "button", class: "button", onclick: this.actions.enterKey}, "Enter the key"),
        last &&
            el("button", {type: "button", class: "button", onclick: () => this.actions.regenerate(this.index)},
               "Try again"));
  }
}

function userMessage(message, index, following, actions) {
  const body = el("div", {class: "bubble"}, message.content);
  const edit = () => {
    const area = el("textarea", {class: "edit", rows: "1", "aria-label": "Edit the message"});
    area.value = message.content;
    const cancel = () => element.replaceChildren(body, foot);
    const save = () => actions.edit(index, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
        actions.focusComposer();
      } else if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        save();
      }
    });
    const note = following > 0 ? "Replaces this message and what follows it." : "";
    element.replaceChildren(
        el("div", {class: "editor"}, area,
           el("div", {class: "editor-foot"}, el("small", {}, note),
              el("button", {type: "button", class: "button", onclick: cancel}, "Cancel"),
              el("button", {type: "button", class: "button primary", onclick: save}, "Send"))));
    growWithText(area)();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  };
  const foot = el("div", {class: "user-foot"}, copyButton("Copy the message", () => message.content),
                  iconButton("edit", "Edit the message", edit, {"data-edit": true}));
  const element = el("article", {class: "message user", "aria-label": "Your message"}, body, foot);
  return element;
}

const toolMessage = (message) => el(
    "article", {class: "message tool", "aria-label": "Result of a tool"},
    el("details", {class: "fold"}, el("summary", {}, "Result of ", el("code", {}, message.name)),
       el("pre", {tabindex: "0"}, el("code", {}, readableJson(message.content)))));

// actions: {regenerate(index), choose(index, answer), edit(index, text), sendResults(messages), enterKey(), focusComposer()}
export class MessagesView {
  #views = new Map();  // index of the message -> AnswerView

  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
  }

  // isRunning(message): whether its answer is still coming.
  show(conversation, isRunning) {
    this.#views.clear();
    const messages = conversation.messages;
    this.element.replaceChildren(...messages.map((message, index) => {
      if (message.role === "user") return userMessage(message, index, messages.length - index - 1, this.actions);
      if (message.role === "tool") return toolMessage(message);
      const view = new AnswerView(message, index, this.actions);
      view.update(isRunning(message), index === messages.length - 1);
      this.#views.set(message, view);
      return view.element;
    }));
  }

  // After more of an answer has come, or its end.
  refresh(message, running, last) {
    this.#views.get(message)?.update(running, last);
  }

  editLast() {
    const buttons = this.element.querySelectorAll("[data-edit]");
    buttons[buttons.length - 1]?.click();
  }
}
