// The settings' panel: the key, the system prompt, how tokens are drawn, tools.
import {SETTINGS, settingProblem, toolsProblem} from "./conversation.js";
import {byId, el} from "./dom.js";
import {apiKey, setApiKey} from "./page.js";

export class SettingsPanel {
  #fields = new Map();  // name -> the element that holds it

  // onChange(name, text): a setting of the conversation; onKey(): another API key.
  constructor({onChange, onKey}) {
    for (const setting of SETTINGS) byId("sampling").append(this.#number(setting, onChange));
    for (const name of ["system", "tools"]) {
      const area = byId(name);
      this.#fields.set(name, area);
      area.addEventListener("input", () => {
        if (name === "tools") this.#showToolsProblem();
        onChange(name, area.value);
      });
    }
    const key = byId("key");
    key.value = apiKey();
    key.addEventListener("change", () => {
      setApiKey(key.value);
      onKey();
    });
    byId("reset").addEventListener("click", () => {
      for (const {name} of SETTINGS) onChange(name, "");
      this.show({...this.#shown, ...Object.fromEntries(SETTINGS.map(({name}) => [name, ""]))});
    });
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      key.blur();  // Enter in the key's field takes it
    });
  }

  #shown = {};

  #number(setting, onChange) {
    const problem = el("small", {class: "problem", role: "status"});
    const input = el("input", {
      inputmode: "decimal",
      placeholder: "default",
      autocomplete: "off",
      spellcheck: "false",
      "data-name": setting.name
    });
    input.addEventListener("input", () => {
      const wrong = settingProblem(setting, input.value);
      problem.textContent = wrong;
      input.setAttribute("aria-invalid", wrong ? "true" : "false");
      onChange(setting.name, input.value);
    });
    this.#fields.set(setting.name, input);
    return el("label", {class: "number"}, el("span", {}, setting.label), input, problem);
  }

  #showToolsProblem() {
    byId("tools-problem").textContent = toolsProblem(byId("tools").value);
  }

  // What holds where a field is empty, by name; what is not in it is the server's default.
  showDefaults(sampling) {
    for (const {name} of SETTINGS) {
      this.#fields.get(name).placeholder = name in sampling ? String(sampling[name]) : "default";
    }
  }

  show(settings) {
    this.#shown = settings;
    for (const [name, field] of this.#fields) field.value = settings[name] ?? "";
    for (const setting of SETTINGS) {
      const field = this.#fields.get(setting.name);
      const wrong = settingProblem(setting, field.value);
      field.setAttribute("aria-invalid", wrong ? "true" : "false");
      field.nextElementSibling.textContent = wrong;
    }
    this.#showToolsProblem();
  }
}
