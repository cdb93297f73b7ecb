// What the dashboard shows, worked out of readings of /metrics. Plain values; knows no document.
import {bucketIncrease, buckets, byLabel, increase, largest, parseMetrics, quantile, total} from "./prometheus.js";

export const HISTOGRAMS = {
  ttft: "vllm:time_to_first_token_seconds",
  tpot: "vllm:request_time_per_output_token_seconds",
  queue: "vllm:request_queue_time_seconds",
};

// One reading: plain numbers (null where the server does not have them) and cumulative buckets.
export function readingOf(text, time) {
  const samples = parseMetrics(text);
  const reading = {
    time,  // seconds
    running: total(samples, "vllm:num_requests_running"),
    waiting: total(samples, "vllm:num_requests_waiting"),
    kvUsage: largest(samples, "vllm:kv_cache_usage_perc"),  // of several models the fullest one's
    prompt: total(samples, "vllm:prompt_tokens_total"),
    cached: total(samples, "vllm:prompt_tokens_cached_total"),
    generation: total(samples, "vllm:generation_tokens_total"),
    texts: total(samples, "quire:pooled_texts_total"),
    prefixQueries: total(samples, "vllm:prefix_cache_queries_total"),
    prefixHits: total(samples, "vllm:prefix_cache_hits_total"),
    drafts: total(samples, "vllm:spec_decode_num_draft_tokens_total"),
    draftsAccepted: total(samples, "vllm:spec_decode_num_accepted_tokens_total"),
    preemptions: total(samples, "vllm:num_preemptions_total"),
    finished: byLabel(samples, "vllm:request_success_total", "finished_reason"),
    rejected: total(samples, "vllm:admission_rejections_total"),
    phases: byLabel(samples, "quire:step_phase_seconds_total", "phase"),
    cache: samples.get("vllm:cache_config_info")?.[0]?.labels ?? {},
    histograms: {},
  };
  for (const [key, name] of Object.entries(HISTOGRAMS)) reading.histograms[key] = buckets(samples, name);
  return reading;
}

const perSecond = (before, now, key) => {
  const grown = increase(before[key], now[key]);
  const seconds = now.time - before.time;
  return grown === null || seconds <= 0 ? null : grown / seconds;
};

// The readings of the last `span` seconds and what follows from each beside the one before it.
export class History {
  readings = [];
  points = [];  // {time, generation, prompt, texts, running, waiting, kvUsage, hitRate, acceptance, preemptions, ttft: {p50, p95}, ...}

  constructor(span) {
    this.span = span;
  }

  // window: seconds over which shares and percentiles are taken. Returns the new point.
  add(reading, window) {
    const before = this.readings[this.readings.length - 1] ?? null;
    // A server that began anew has nothing to be compared with.
    if (before && reading.generation !== null && reading.generation < before.generation) this.readings = [];
    const past = this.since(reading.time - window) ?? reading;
    const hits = increase(past.prefixHits, reading.prefixHits);
    const queries = increase(past.prefixQueries, reading.prefixQueries);
    const drafts = increase(past.drafts, reading.drafts);
    const point = {
      time: reading.time,
      generation: before ? perSecond(before, reading, "generation") : null,
      prompt: before ? perSecond(before, reading, "prompt") : null,
      texts: before ? perSecond(before, reading, "texts") : null,
      running: reading.running,
      waiting: reading.waiting,
      kvUsage: reading.kvUsage,
      hitRate: queries > 0 ? hits / queries : null,
      acceptance: drafts > 0 ? increase(past.draftsAccepted, reading.draftsAccepted) / drafts : null,
      preemptions: before ? increase(before.preemptions, reading.preemptions) : null,
    };
    for (const key of Object.keys(HISTOGRAMS)) {
      const grown = bucketIncrease(past.histograms[key], reading.histograms[key]);
      point[key] = {p50: quantile(0.5, grown), p95: quantile(0.95, grown)};
    }
    this.readings.push(reading);
    this.points.push(point);
    const first = reading.time - this.span;
    while (this.readings.length > 1 && this.readings[0].time < first) this.readings.shift();
    while (this.points.length > 1 && this.points[0].time < first) this.points.shift();
    return point;
  }

  // The newest reading that is not younger than `time`, else the oldest.
  since(time) {
    let found = this.readings[0] ?? null;
    for (const reading of this.readings) {
      if (reading.time > time) break;
      found = reading;
    }
    return found;
  }

  // How much each key of a map of counters grew in the last `window` seconds: Map.
  growth(key, window) {
    const now = this.readings[this.readings.length - 1];
    if (!now) return new Map();
    const past = this.since(now.time - window);
    return new Map([...now[key]].map(([name, value]) => [name, increase(past[key].get(name) ?? 0, value)]));
  }
}
