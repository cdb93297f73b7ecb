// The list of conversations.
import {confirmDialog, el, iconButton} from "./dom.js";

function download(conversation) {
  const {title, created, updated, settings, messages} = conversation;
  const text = JSON.stringify(
      {
        format: "quire-conversation",
        version: 1,
        title,
        created: new Date(created).toISOString(),
        updated: new Date(updated).toISOString(),
        settings,
        messages
      },
      null, 2);
  const url = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation";
  const link = el("a", {href: url, download: `${name}.json`});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// actions: {open(id), rename(conversation, title), remove(conversation)}
export class Sidebar {
  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
  }

  show(conversations, currentId, isRunning) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    if (this.element.querySelector("input")) return;  // a name is being typed
    this.element.replaceChildren(
        ...conversations.map((each) => this.row(each, each.id === currentId, isRunning(each))));
    if (focused) this.element.querySelector(`[data-id="${focused}"]`)?.focus();
  }

  row(conversation, current, running) {
    const open =
        el("button", {
          type: "button",
          class: "conversation",
          "data-id": conversation.id,
          title: conversation.title,
          "aria-current": current ? "true" : null,
          onclick: () => this.actions.open(conversation.id)
        },
           conversation.title, running && el("span", {class: "live", "aria-label": "is being answered"}));
    const row = el("li", {class: current ? "row current" : "row"}, open,
                   el("span", {class: "row-buttons"},
                      iconButton("edit", "Rename", () => this.rename(conversation, row)),
                      iconButton("download", "Export as JSON", () => download(conversation)),
                      iconButton("trash", "Delete", () => this.remove(conversation))));
    return row;
  }

  rename(conversation, row) {
    const input = el("input", {class: "rename", "aria-label": "Name of the conversation", maxlength: "200"});
    input.value = conversation.title;
    let over = false;
    const finish = (keep) => {
      if (over) return;
      over = true;
      const title = input.value.trim();
      input.remove();
      this.actions.rename(conversation, keep && title ? title : conversation.title);
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      }
    });
    input.addEventListener("blur", () => finish(true));
    row.replaceChildren(input);
    input.focus();
    input.select();
  }

  async remove(conversation) {
    const yes = await confirmDialog(
        "Delete the conversation?", `“${conversation.title}” is kept in this browser only and cannot be brought back.`,
        "Delete");
    if (yes) this.actions.remove(conversation);
  }
}
