// A conversation as plain values, what of it is sent, and the browser's database that keeps it.
//
// {id, title, named, created, updated, settings, messages}
//   messages: {role: "user", content} | {role: "assistant", answers: [see answer.js], chosen} |
//             {role: "tool", callId, name, content}

export const SETTINGS = [
  // name in the request, label, range, step; empty: what suits the model, or the server's default
  {name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05},
  {name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01},
  {name: "top_k", label: "Top k", min: 0, max: 1000000, step: 1},
  {name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01},
  {name: "max_tokens", label: "Max tokens", min: 1, max: 10000000, step: 1},
  {name: "seed", label: "Seed", min: 0, max: 9007199254740991, step: 1},
  {name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1},
  {name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1},
  {name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01},
];

export function newConversation(settings = {}) {
  const now = Date.now();
  return {
    id: crypto.getRandomValues(new Uint32Array(4)).join("-"),
    title: "New conversation",
    named: false,  // by the user
    created: now,
    updated: now,
    settings: structuredClone(settings),  // {model, system, tools (JSON text), and the names above}
    messages: [],
  };
}

// What is wrong with a setting's text, or "".
export function settingProblem(setting, text) {
  if (text.trim() === "") return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return `${setting.label} must be a number.`;
  if (Number.isInteger(setting.step) && !Number.isInteger(value)) return `${setting.label} must be a whole number.`;
  if (value < setting.min || value > setting.max) {
    return `${setting.label} must be from ${setting.min} to ${setting.max}.`;
  }
  return "";
}

// What is wrong with the tools' JSON, or "".
export function toolsProblem(text) {
  if (!text?.trim()) return "";
  try {
    const tools = JSON.parse(text);
    if (!Array.isArray(tools) || tools.length === 0) return "Tools must be a list of tools, as JSON.";
  } catch (error) {
    return `Tools are not JSON: ${error.message}`;
  }
  return "";
}

export function chosenAnswer(message) {
  return message.answers[message.chosen];
}

function requestMessage(message) {
  if (message.role === "user") return {role: "user", content: message.content};
  if (message.role === "tool") return {role: "tool", tool_call_id: message.callId, content: message.content};
  const answer = chosenAnswer(message);
  const out = {role: "assistant", content: answer.content};
  if (answer.toolCalls.length > 0) {
    out.tool_calls = answer.toolCalls.map((call) => (
        {id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
  }
  return out;
}

// The body of the request that asks for what follows `messages`. Settings that are empty or wrong are not in it, but for
// `sampling`: what suits the model, by the names of SETTINGS.
export function requestBody(settings, messages, sampling = {}) {
  const body = {model: settings.model ?? "", messages: messages.map(requestMessage)};
  for (const {name} of SETTINGS) {
    if (typeof sampling[name] === "number") body[name] = sampling[name];
  }
  if (settings.system?.trim()) body.messages.unshift({role: "system", content: settings.system});
  for (const setting of SETTINGS) {
    const text = String(settings[setting.name] ?? "");
    if (text.trim() !== "" && settingProblem(setting, text) === "") body[setting.name] = Number(text);
  }
  if (settings.tools?.trim() && toolsProblem(settings.tools) === "") body.tools = JSON.parse(settings.tools);
  return body;
}

// A title out of the first message.
export function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  const characters = [...line];
  return characters.length <= 48 ? line || "New conversation" : `${characters.slice(0, 47).join("").trimEnd()}…`;
}

const promised = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// IndexedDB; where the browser forbids it, conversations live as long as the page (`lasting` is false).
export class ConversationStore {
  #database = null;
  #memory = new Map();

  async open() {
    try {
      const request = indexedDB.open("quire", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", {keyPath: "id"});
      this.#database = await promised(request);
      this.#database.onversionchange = () => this.#database.close();
    } catch {
      this.#database = null;
    }
  }

  get lasting() {
    return this.#database !== null;
  }

  #objects(mode) {
    return this.#database.transaction("conversations", mode).objectStore("conversations");
  }

  // The newest first.
  async all() {
    const found = this.#database ? await promised(this.#objects("readonly").getAll()) : [...this.#memory.values()];
    return found.sort((a, b) => b.updated - a.updated);
  }

  async put(conversation) {
    if (this.#database) {
      await promised(this.#objects("readwrite").put(structuredClone(conversation)));
    } else {
      this.#memory.set(conversation.id, conversation);
    }
  }

  async remove(id) {
    if (this.#database) await promised(this.#objects("readwrite").delete(id));
    this.#memory.delete(id);
  }
}
