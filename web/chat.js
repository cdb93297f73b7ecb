// The chat page.
import {listModels} from "./api.js";
import {ConversationStore, chosenAnswer, newConversation, requestBody, titleOf} from "./conversation.js";
import {announce, byId, copyText, el, icon} from "./dom.js";
import {MessagesView} from "./messages.js";
import {preference, setPreference, setUpPage} from "./page.js";
import {Run} from "./run.js";
import {SettingsPanel} from "./settings.js";
import {Sidebar} from "./sidebar.js";

const store = new ConversationStore();
const runs = new Map();      // id of a conversation -> Run
let conversations = [];      // those that are kept, the newest first
let current = newConversation();
const otherTabs = "BroadcastChannel" in window ? new BroadcastChannel("quire") : null;
const narrow = matchMedia("(max-width: 899px)");
const composer = byId("composer-text");
const scroll = byId("scroll");

const running = () => runs.get(current.id) ?? null;

// ---------------------------------------------------------------------------------------------- what is kept

async function keep(conversation) {
  if (conversation.messages.length === 0) return;
  try {
    await store.put(conversation);
    otherTabs?.postMessage(conversation.id);
  } catch (error) {
    showNotice("This browser has no room left to keep the conversation.", "Export it, or delete others.");
    console.warn(error);
  }
  if (!conversations.includes(conversation)) conversations.push(conversation);
  conversations.sort((a, b) => b.updated - a.updated);
  showList();
}

// Another tab has changed something: what is not being answered here is read again.
async function readAgain(id) {
  const old = new Map(conversations.map((each) => [each.id, each]));
  conversations =
      (await store.all()).map((each) => (runs.has(each.id) || each.id !== id ? old.get(each.id) ?? each : each));
  const again = conversations.find((each) => each.id === current.id);
  if (again && again !== current && !running()) {
    current = again;
    showConversation();
  }
  showList();
}

// ---------------------------------------------------------------------------------------------- what is shown

function showList() {
  sidebar.show(conversations, current.id, (conversation) => runs.has(conversation.id));
}

function showConversation() {
  view.show(current, (message) => running()?.message === message);
  byId("title").textContent = current.title;
  document.title = current.messages.length > 0 ? `${current.title} · quire` : "quire";
  byId("empty").hidden = current.messages.length > 0;
  history.replaceState(null, "", current.messages.length > 0 ? `#${current.id}` : location.pathname);
  panel.show(current.settings);
  showModel();
  showSend();
  showList();
  showWayToEnd();
}

function showSend() {
  const button = byId("send");
  const name = running() ? "stop" : "up";
  if (button.dataset.shows === name) return;
  button.dataset.shows = name;
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", running() ? "Stop the answer" : "Send");
  button.title = running() ? "Stop (Esc)" : "Send";
}

// A message above the composer; actions: [[label, function]].
function showNotice(text, advice, actions = []) {
  const notice = byId("notice");
  notice.hidden = false;
  notice.replaceChildren(
      el("p", {}, el("strong", {}, text), " ", advice),
      ...actions.map(([label, act]) => el("button", {type: "button", class: "button", onclick: act}, label)));
}

function hideNotice() {
  byId("notice").hidden = true;
}

const nearEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;

function showWayToEnd() {
  byId("to-end").hidden = nearEnd();
}

function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
  showWayToEnd();
}

// Runs what changes the messages and stays at the end if it was there.
function following(change) {
  const follow = nearEnd();
  change();
  if (follow) {
    toEnd();
  } else {
    showWayToEnd();
  }
}

function fitComposer() {
  composer.style.height = "auto";
  composer.style.height = `${Math.min(composer.scrollHeight, 240)}px`;
}

// ---------------------------------------------------------------------------------------------- asking

function answerTo(message) {
  const conversation = current;
  const before = conversation.messages.slice(0, conversation.messages.indexOf(message));
  let saved = performance.now();
  const settings = {...conversation.settings, model: byId("model").value};
  const run =
      new Run(conversation, message, requestBody(settings, before, samplingOf(settings.model)), {
        onChange: () => {
          if (conversation === current) following(() => view.refresh(message, true, true));
          if (performance.now() - saved < 2000) return;
          saved = performance.now();
          store.put(conversation).catch(() => {});
        },
        onEnd: () => {
          runs.delete(conversation.id);
          conversation.updated = Date.now();
          if (conversation === current) {
            following(() => view.refresh(message, false, true));
            showSend();
            const {error, finish} = run.answer;
            announce(
                error ? `${error.message} ${error.advice}` :
                    finish === "stopped" ? "Stopped" :
                                           "The answer is complete");
          }
          keep(conversation);
        },
      });
  runs.set(conversation.id, run);
  hideNotice();
  showConversation();
  toEnd();
  keep(conversation);
  run.start();
}

function ask() {
  const message = {role: "assistant", answers: [], chosen: 0};
  current.messages.push(message);
  current.updated = Date.now();
  answerTo(message);
}

function send(text) {
  if (running() || text.trim() === "") return false;
  if (current.messages.length === 0 && !current.named) current.title = titleOf(text);
  current.messages.push({role: "user", content: text});
  ask();
  return true;
}

function stop() {
  running()?.stop();
}

const actions = {
  regenerate(index) {
    const message = current.messages[index];
    if (running() || message?.role !== "assistant" || index !== current.messages.length - 1) return;
    // One that failed before it said anything is not worth keeping.
    const failed = chosenAnswer(message);
    if (failed.error && failed.content === "" && failed.reasoning === "") message.answers.splice(message.chosen, 1);
    answerTo(message);
  },
  choose(index, answer) {
    const message = current.messages[index];
    if (running() || answer < 0 || answer >= message.answers.length) return;
    message.chosen = answer;
    view.refresh(message, false, index === current.messages.length - 1);
    keep(current);
  },
  edit(index, text) {
    if (running() || text.trim() === "") return;
    current.messages.length = index;
    send(text);
    composer.focus();
  },
  sendResults(results) {
    if (running()) return;
    current.messages.push(...results);
    ask();
    composer.focus();
  },
  enterKey() {
    setPanel("settings", true);
    byId("key").focus();
  },
  focusComposer: () => composer.focus(),
};

// ---------------------------------------------------------------------------------------------- conversations

function startNew() {
  current = newConversation(current.settings);
  showConversation();
  hideNotice();
  if (narrow.matches) setPanel("sidebar", false);
  composer.focus();
}

function open(id) {
  const found = conversations.find((each) => each.id === id);
  if (!found) return;
  current = found;
  hideNotice();
  showConversation();
  toEnd();
  if (narrow.matches) {
    setPanel("sidebar", false);
    composer.focus();
  }
}

function openBeside(step) {
  const at = conversations.findIndex((each) => each.id === current.id);
  const next = conversations[at < 0 ? 0 : at + step];
  if (next) open(next.id);
}

const conversationActions = {
  open,
  rename(conversation, title) {
    if (title !== conversation.title) Object.assign(conversation, {title, named: true});
    if (conversation === current) byId("title").textContent = title;
    keep(conversation);
  },
  async remove(conversation) {
    runs.get(conversation.id)?.stop();
    runs.delete(conversation.id);
    conversation.messages = [];  // so that an answer on its way does not bring it back
    conversations = conversations.filter((each) => each !== conversation);
    await store.remove(conversation.id);
    otherTabs?.postMessage(conversation.id);
    announce("Deleted");
    if (conversation === current) {
      startNew();
    } else {
      showList();
    }
  },
};

// ---------------------------------------------------------------------------------------------- model, settings

let models = [];

const samplingOf = (name) => models.find((model) => model.id === name)?.sampling ?? {};

function showModel() {
  const select = byId("model");
  const wanted = models.some((model) => model.id === current.settings.model) ? current.settings.model : models[0]?.id;
  if (wanted !== undefined) select.value = wanted;
  panel.showDefaults(samplingOf(select.value));
}

async function readModels() {
  try {
    models = await listModels();
    hideNotice();
  } catch (error) {
    if (!error.kind) throw error;
    const again = error.kind === "key" ? ["Enter the key", actions.enterKey] : ["Try again", readModels];
    showNotice(error.message, error.advice, [again]);
  }
  byId("model").replaceChildren(
      ...(models.length > 0 ? models.map((model) => el("option", {value: model.id}, model.id)) :
                              [el("option", {value: ""}, "default")]));
  byId("model").disabled = models.length === 0;
  showModel();
}

// Typing is kept when it rests.
let resting = null;

function changeSetting(name, text) {
  const conversation = current;
  conversation.settings[name] = text;
  clearTimeout(resting);
  resting = setTimeout(() => keep(conversation), 300);
  rememberSettings();
}

// New conversations begin with the last settings.
function rememberSettings() {
  setPreference("settings", JSON.stringify(current.settings));
}

function rememberedSettings() {
  try {
    const settings = JSON.parse(preference("settings") ?? "{}");
    return Object.fromEntries(Object.entries(settings ?? {}).filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}

// ---------------------------------------------------------------------------------------------- panels

function setPanel(name, open, remember = true) {
  document.body.dataset[name] = open ? "open" : "closed";
  byId(`${name}-open`).setAttribute("aria-expanded", String(open));
  if (remember && name === "sidebar" && !narrow.matches) setPreference("sidebar", open ? "open" : "closed");
  const covers = (narrow.matches && document.body.dataset.sidebar === "open") ||
      (matchMedia("(max-width: 1199px)").matches && document.body.dataset.settings === "open");
  byId("scrim").hidden = !covers;
  byId("main").inert = covers;
}

const isOpen = (name) => document.body.dataset[name] === "open";

function togglePanel(name) {
  const open = !isOpen(name);
  setPanel(name, open);
  if (open) {
    byId(name).querySelector(name === "settings" ? "input" : "button.wide").focus();
  } else {
    byId(`${name}-open`).focus();
  }
}

function closeOverlays() {
  if (isOpen("settings")) return togglePanel("settings");
  if (narrow.matches && isOpen("sidebar")) togglePanel("sidebar");
}

// ---------------------------------------------------------------------------------------------- keyboard

const SHORTCUTS = [
  ["Enter", "Send the message", null],
  ["Shift Enter", "Start a new line", null],
  ["Esc", "Stop the answer; close what is open", null],
  ["↑", "In an empty message field: edit your last message", null],
  ["/", "To the message field", null],
  ["Alt N", "New conversation", {KeyN: startNew}],
  ["Alt ↑", "The conversation above in the list", {ArrowUp: () => openBeside(-1)}],
  ["Alt ↓", "The conversation below in the list", {ArrowDown: () => openBeside(1)}],
  ["Alt R", "Answer again", {KeyR: () => actions.regenerate(current.messages.length - 1)}],
  ["Alt C", "Copy the last answer", {KeyC: copyLast}],
  ["Alt L", "Show or hide the list", {KeyL: () => togglePanel("sidebar")}],
  ["Alt P", "Show or hide the settings", {KeyP: () => togglePanel("settings")}],
  ["Alt K", "This list", {KeyK: showHelp}],
];

function showHelp() {
  if (!byId("help").open) byId("help").showModal();
}

async function copyLast() {
  const last = current.messages.findLast((message) => message.role === "assistant");
  if (!last) return;
  await copyText(chosenAnswer(last).content);
  announce("Copied");
}

const typing = (target) => target.matches?.("input, textarea, select");

function onKey(event) {
  if (event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    const act = SHORTCUTS.find(([, , acts]) => acts && event.code in acts)?.[2][event.code];
    if (!act) return;
    event.preventDefault();
    act();
  } else if (event.key === "Escape") {
    if (running() && !byId("main").inert) {
      stop();
    } else {
      closeOverlays();
    }
  } else if (!typing(event.target) && !event.ctrlKey && !event.metaKey) {
    if (event.key === "/") {
      event.preventDefault();
      composer.focus();
    } else if (event.key === "?") {
      showHelp();
    }
  }
}

function onComposerKey(event) {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    if (!running()) byId("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !event.altKey && composer.value === "" && !running()) {
    event.preventDefault();
    view.editLast();
  }
}

// ---------------------------------------------------------------------------------------------- start

const view = new MessagesView(byId("messages"), actions);
const sidebar = new Sidebar(byId("conversations"), conversationActions);
const panel = new SettingsPanel({onChange: changeSetting, onKey: readModels});

function listen() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running()) return stop();
    if (!send(composer.value)) return;
    composer.value = "";
    fitComposer();
  });
  composer.addEventListener("input", fitComposer);
  composer.addEventListener("keydown", onComposerKey);
  document.addEventListener("keydown", onKey);
  byId("new").addEventListener("click", startNew);
  byId("to-end").addEventListener("click", toEnd);
  scroll.addEventListener("scroll", showWayToEnd, {passive: true});
  addEventListener("resize", showWayToEnd);
  byId("model").addEventListener("change", () => {
    changeSetting("model", byId("model").value);
    showModel();
  });
  byId("help-open").addEventListener("click", showHelp);
  byId("help-close").addEventListener("click", () => byId("help").close());
  byId("scrim").addEventListener("click", closeOverlays);
  for (const name of ["sidebar", "settings"]) byId(`${name}-open`).addEventListener("click", () => togglePanel(name));
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => togglePanel(button.dataset.close));
  }
  narrow.addEventListener(
      "change", () => setPanel("sidebar", !narrow.matches && preference("sidebar") !== "closed", false));
  matchMedia("(max-width: 1199px)").addEventListener("change", () => setPanel("settings", isOpen("settings"), false));
  otherTabs?.addEventListener("message", (event) => readAgain(event.data));
  addEventListener("pagehide", () => {
    for (const conversation of [current, ...[...runs.values()].map((run) => run.conversation)]) {
      if (conversation.messages.length > 0) store.put(conversation).catch(() => {});
    }
  });
}

function showShortcuts() {
  byId("shortcuts").replaceChildren(...SHORTCUTS.flatMap(([keys, text]) => [
    el("dt", {}, keys.split(" ").flatMap((key, i) => (i === 0 ? [el("kbd", {}, key)] : [" + ", el("kbd", {}, key)]))),
    el("dd", {}, text),
  ]));
}

async function start() {
  setUpPage();
  showShortcuts();
  setPanel("sidebar", !narrow.matches && preference("sidebar") !== "closed", false);
  setPanel("settings", false);
  listen();
  current = newConversation(rememberedSettings());
  await store.open();
  conversations = await store.all();
  if (!store.lasting)
    byId("empty-text").textContent = "This browser keeps no data here: conversations end with the page.";
  current = conversations.find((each) => `#${each.id}` === location.hash) ?? current;
  showConversation();
  toEnd();
  if (!narrow.matches) composer.focus();
  await readModels();
  document.body.dataset.ready = "true";
}

start();
