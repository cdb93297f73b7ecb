// The dashboard: asks for /metrics every second or two and draws what it says.
import {metricsText} from "./api.js";
import {Chart} from "./chart.js";
import {announce, byId, el} from "./dom.js";
import {apiKey, preference, setApiKey, setPreference, setUpPage} from "./page.js";
import {History, readingOf} from "./readings.js";

const LONGEST = 900;       // seconds of history that are kept
const PERCENTILES = 30;    // seconds of observations in a percentile or a share
const REASONS = {
  stop: "Complete",
  length: "Limit of tokens",
  abort: "Cancelled",
  error: "Failed",
  tool_calls: "Tool calls",
  repetition: "Repetition",
  timeout: "Out of time"
};

const number = (value, digits) => value.toLocaleString("en", {maximumFractionDigits: digits, minimumFractionDigits: 0});
const rate = (value) => number(value, value < 10 ? 1 : 0);
const count = (value) => number(value, value < 10 && value % 1 !== 0 ? 1 : 0);
const percent = (value) => `${number(100 * value, value < 0.01 ? 2 : value < 0.1 ? 1 : 0)} %`;
function duration(seconds) {
  if (seconds < 0.001) return `${number(seconds * 1e6, 0)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, seconds < 0.01 ? 1 : 0)} ms`;
  return `${number(seconds, seconds < 10 ? 2 : 1)} s`;
}

const history = new History(LONGEST);
let shownSeconds = Number(preference("span")) || 60;
let interval = Number(preference("interval")) || 1;
let paused = false;
let problem = null;
let timer = null;
let controller = null;

// ---------------------------------------------------------------------------------------------- cards

const percentiles = (key) => [
  {name: "p50", className: "first", value: (point) => point[key].p50},
  {name: "p95", className: "second", value: (point) => point[key].p95},
];

const CARDS = [
  {
    title: "Generation",
    unit: "tokens/s",
    format: rate,
    least: 10,
    series: [{name: "", className: "first", value: (point) => point.generation}],
    note: (reading) => `${count(reading.generation ?? 0)} in all`
  },
  {
    title: "Prompts",
    unit: "tokens/s",
    format: rate,
    least: 10,
    series: [{name: "", className: "first", value: (point) => point.prompt}],
    note: (reading) => `${count(reading.prompt ?? 0)} in all, ${count(reading.cached ?? 0)} of them cached`
  },
  {
    title: "Vectors and scores",
    unit: "texts/s",
    format: rate,
    least: 10,
    series: [{name: "", className: "first", value: (point) => point.texts}],
    note: (reading) => `${count(reading.texts ?? 0)} in all`
  },
  {
    title: "Requests",
    unit: "",
    format: count,
    least: 4,
    series: [
      {name: "running", className: "first", value: (point) => point.running},
      {name: "waiting", className: "second", value: (point) => point.waiting}
    ]
  },
  {
    title: "Time to first token",
    unit: "",
    format: duration,
    least: 0.001,
    empty: "no first token",
    series: percentiles("ttft")
  },
  {
    title: "Time per output token",
    unit: "",
    format: duration,
    least: 0.001,
    empty: "no answer ended",
    series: percentiles("tpot")
  },
  {
    title: "Time in the queue",
    unit: "",
    format: duration,
    least: 0.001,
    empty: "no request began",
    series: percentiles("queue")
  },
  {
    title: "KV cache in use",
    unit: "",
    format: percent,
    most: 1,
    series: [{name: "", className: "first", value: (point) => point.kvUsage}],
    note: ({cache}) =>
        (cache.num_gpu_blocks ? `${count(Number(cache.num_gpu_blocks))} blocks of ${cache.block_size} tokens` : "")
  },
  {
    title: "Prefix cache hits",
    unit: "",
    format: percent,
    most: 1,
    empty: "no prompt",
    series: [{name: "", className: "first", value: (point) => point.hitRate}],
    note: (reading) => `${count(reading.prefixHits ?? 0)} of ${count(reading.prefixQueries ?? 0)} tokens in all`
  },
  {
    title: "Drafts accepted",
    unit: "",
    format: percent,
    most: 1,
    empty: "nothing guessed ahead",
    series: [{name: "", className: "first", value: (point) => point.acceptance}],
    note: (reading) => `${count(reading.draftsAccepted ?? 0)} of ${count(reading.drafts ?? 0)} tokens in all`
  },
  {
    title: "Preemptions",
    unit: "",
    format: count,
    least: 4,
    series: [{name: "", className: "first", value: (point) => point.preemptions}],
    note: (reading) => `${count(reading.preemptions ?? 0)} in all`
  },
];

class Card {
  constructor(card) {
    this.card = card;
    this.values = card.series.map((series) => el("b", {class: "number"}, "–"));
    this.note = el("p", {class: "card-note"});
    this.chart = new Chart({title: `${card.title}: a chart; the left and right keys show values`, series: card.series,
                            format: card.format, most: card.most ?? null, least: card.least});
    const many = card.series.length > 1;
    this.element =
        el("section", {class: "card", "aria-label": card.title},
           el("header", {}, el("h2", {}, card.title),
              el("div", {class: "now"},
                 card.series.map(
                     (series, i) =>
                         el("span", {class: many ? `value ${series.className}` : "value"},
                            many && el("span", {class: "key"}, series.name), this.values[i],
                            card.unit && el("span", {class: "unit"}, card.unit))))),
           this.chart.element, this.note);
  }

  show(points, reading, from, to) {
    const {series, format, empty} = this.card;
    const last = points[points.length - 1];
    const now = series.map((each) => (last ? each.value(last) : null));
    now.forEach((value, i) => { this.values[i].textContent = value === null ? "–" : format(value); });
    const idle = empty && last && now.every((value) => value === null);
    this.note.textContent =
        idle ? `${empty} in the last ${PERCENTILES} s` : this.card.note?.(reading) ?? `of the last ${PERCENTILES} s`;
    if (!empty && !this.card.note) this.note.textContent = "";
    this.chart.show(
        series.map((each) => points.map((point) => [point.time, each.value(point)])), from, to, 3.5 * interval + 1);
  }
}

// A list of names with bars: rows [[name, value, text]].
function showBars(element, rows, nothing) {
  if (rows.length === 0) {
    element.replaceChildren(el("p", {class: "card-note"}, nothing));
    return;
  }
  const most = Math.max(...rows.map(([, value]) => value));
  element.replaceChildren(...rows.map(([name, value, text]) => {
    const bar = el("span", {class: "bar-fill"});
    bar.style.width = `${most > 0 ? 100 * value / most : 0}%`;
    return el("div", {class: "bar-row"}, el("span", {class: "bar-name"}, name), el("span", {class: "bar-track"}, bar),
              el("span", {class: "bar-value"}, text));
  }));
}

const cards = CARDS.map((card) => new Card(card));

// ---------------------------------------------------------------------------------------------- drawing

function showState() {
  const reading = history.readings[history.readings.length - 1];
  const state = byId("state");
  let kind = "wait";
  let text = "Asking the server…";
  if (problem) {
    kind = problem.kind === "key" ? "wait" : "bad";
    text = `${problem.message} ${problem.advice}`;
  } else if (paused) {
    text = "Paused";
  } else if (reading) {
    const busy = (reading.running ?? 0) + (reading.waiting ?? 0) > 0;
    kind = busy ? "busy" : "good";
    text = busy ? "At work" : "Idle";
  }
  state.dataset.kind = kind;
  if (byId("state-text").textContent !== text) byId("state-text").textContent = text;
  byId("key-form").hidden = problem?.kind !== "key";
}

function draw() {
  showState();
  const reading = history.readings[history.readings.length - 1];
  if (!reading) return;
  const to = reading.time;
  const from = to - shownSeconds;
  for (const card of cards) card.show(history.points, reading, from, to);
  byId("model").textContent = reading.cache.model_name ?? "";

  const finished = [...reading.finished].filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const rows = finished.map(([name, value]) => [REASONS[name] ?? name, value, count(value)]);
  if (reading.rejected > 0) rows.push(["Refused", reading.rejected, count(reading.rejected)]);
  showBars(byId("finished"), rows, "No request has ended yet.");

  const phases = [...history.growth("phases", PERCENTILES)].filter(([, value]) => value > 0);
  const sum = phases.reduce((all, [, value]) => all + value, 0);
  showBars(
      byId("phases"),
      sum > 0 ? phases.sort((a, b) => b[1] - a[1]).map(([name, value]) => [name, value, percent(value / sum)]) : [],
      `No step in the last ${PERCENTILES} s.`);
}

// ---------------------------------------------------------------------------------------------- asking

async function read() {
  clearTimeout(timer);
  controller?.abort();
  if (paused || document.hidden) return;
  controller = new AbortController();
  const mine = controller;
  const begin = performance.now();
  try {
    const text = await metricsText(mine.signal);
    history.add(readingOf(text, performance.now() / 1000), PERCENTILES);
    problem = null;
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!error.kind) throw error;
    if (error.message !== problem?.message) announce(`${error.message} ${error.advice}`);
    problem = error;
  }
  draw();
  // What cannot be answered is asked for less often; a missing key not at all.
  if (problem?.kind === "key") {
    byId("key").focus();
    return;
  }
  const wait = (problem ? 3 : 1) * interval * 1000 - (performance.now() - begin);
  timer = setTimeout(read, Math.max(100, wait));
}

function listen() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("key").value);
    read();
  });
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    byId("pause").textContent = paused ? "Go on" : "Pause";
    showState();
    read();
  });
  const choose = (id, value, change) => {
    byId(id).value = String(value);
    byId(id).addEventListener("change", () => {
      change(Number(byId(id).value));
      setPreference(id, byId(id).value);
      draw();
      read();
    });
  };
  choose("span", shownSeconds, (value) => { shownSeconds = value; });
  choose("interval", interval, (value) => { interval = value; });
  document.addEventListener("visibilitychange", read);
}

setUpPage();
if (![60, 300, 900].includes(shownSeconds)) shownSeconds = 60;
if (![1, 2, 5].includes(interval)) interval = 1;
byId("key").value = apiKey();
byId("cards").append(...cards.map((card) => card.element));
listen();
draw();
await read();
document.body.dataset.ready = "true";
