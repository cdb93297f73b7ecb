// Prometheus' text format, and what the dashboard makes of two readings of it.

const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"};

export function numberOf(text) {
  if (text === "+Inf" || text === "Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  if (text === "NaN") return NaN;
  return text === "" ? NaN : Number(text);
}

function labelsOf(text) {
  const labels = {};
  if (!text) return labels;
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\[\\"n]/g, (escape) => ESCAPES[escape]);
  }
  return labels;
}

// Map: name -> [{labels, value}]. Lines that are no samples are passed over.
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const found = SAMPLE.exec(line);
    if (!found) continue;
    const value = numberOf(found[3]);
    if (Number.isNaN(value)) continue;
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({labels: labelsOf(found[2]), value});
  }
  return samples;
}

// The sum over all label sets; null where the metric is not there.
export function total(samples, name) {
  const found = samples.get(name);
  return found ? found.reduce((sum, sample) => sum + sample.value, 0) : null;
}

// The largest of all label sets, as of shares; null where the metric is not there.
export function largest(samples, name) {
  const found = samples.get(name);
  return found ? Math.max(...found.map((sample) => sample.value)) : null;
}

// Map: a label's value -> the sum of the samples that have it.
export function byLabel(samples, name, label) {
  const sums = new Map();
  for (const sample of samples.get(name) ?? []) {
    const key = sample.labels[label] ?? "";
    sums.set(key, (sums.get(key) ?? 0) + sample.value);
  }
  return sums;
}

// How much a counter grew; after a restart of the server, which begins at 0 again, what it shows now.
export function increase(before, now) {
  if (before === null || now === null) return null;
  return now >= before ? now - before : now;
}

// A histogram's cumulative buckets [{le, count}], ascending, summed over all label sets.
export function buckets(samples, name) {
  const sums = new Map();
  for (const sample of samples.get(`${name}_bucket`) ?? []) {
    const le = numberOf(sample.labels.le ?? "");
    if (!Number.isNaN(le)) sums.set(le, (sums.get(le) ?? 0) + sample.value);
  }
  return [...sums].map(([le, count]) => ({le, count})).sort((a, b) => a.le - b.le);
}

// What was observed between two readings of a histogram, as cumulative buckets. A restart counts from 0.
export function bucketIncrease(before, now) {
  const old = new Map(before.map(({le, count}) => [le, count]));
  const restarted = now.some(({le, count}) => count < (old.get(le) ?? 0));
  return now.map(({le, count}) => ({le, count: restarted ? count : count - (old.get(le) ?? 0)}));
}

// The q-quantile (0 to 1) of cumulative buckets, linear inside a bucket, as Prometheus' histogram_quantile has it.
// null without observations; what lies beyond the last finite bound is given as that bound.
export function quantile(q, cumulative) {
  const all = cumulative.length === 0 ? 0 : cumulative[cumulative.length - 1].count;
  if (!(all > 0)) return null;
  const rank = q * all;
  let lower = 0;
  let below = 0;
  for (const {le, count} of cumulative) {
    if (count >= rank && count > below) {
      if (le === Infinity) return lower;
      if (le <= 0) return le;
      return lower + (le - lower) * Math.max(0, (rank - below) / (count - below));
    }
    if (le !== Infinity) lower = le;
    below = count;
  }
  return lower;
}
