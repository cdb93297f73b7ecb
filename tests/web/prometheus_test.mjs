import assert from "node:assert/strict";
import test from "node:test";

import {bucketIncrease, buckets, byLabel, increase, largest, numberOf, parseMetrics, quantile, total} from "../../web/prometheus.js";
import {History, readingOf} from "../../web/readings.js";

const TEXT = `# HELP x_total Things.
# TYPE x_total counter
x_total{reason="stop",model="a, b} \\"c\\" \\\\ \\n"} 3
x_total{reason="length"} 4.5e1 1700000000000
y 1
nan NaN
inf{a="1",} +Inf
not a sample
{x="1"} 3
h_bucket{le="0.1"} 2
h_bucket{le="1"} 6
h_bucket{le="+Inf"} 8
h_sum 9.5
h_count 8
`;

test("samples with labels, escapes, exponents and timestamps", () => {
  const samples = parseMetrics(TEXT);
  assert.equal(total(samples, "x_total"), 48);
  assert.equal(largest(samples, "x_total"), 45);
  assert.equal(samples.get("x_total")[0].labels.model, 'a, b} "c" \\ \n');
  assert.deepEqual([...byLabel(samples, "x_total", "reason")], [["stop", 3], ["length", 45]]);
  assert.equal(total(samples, "y"), 1);
  assert.equal(total(samples, "absent"), null);
  assert.equal(largest(samples, "absent"), null);
  assert.equal(samples.has("nan"), false);
  assert.equal(total(samples, "inf"), Infinity);
  assert.equal(samples.size, 6);
  assert.deepEqual([numberOf("-Inf"), numberOf("1e3"), numberOf("")], [-Infinity, 1000, NaN]);
});

test("whatever text there is, parsing ends", () => {
  for (const text
           of ["", "\n\n", "a{", "a{b=\"", `a{${"b=\"c\",".repeat(20000)}} 1`, "{".repeat(100000),
               `a ${" ".repeat(50000)}x`, "\0\uFFFD"]) {
    parseMetrics(text);
  }
  assert.equal(Object.keys(parseMetrics(`a{${"b=\"c\",".repeat(20)}} 1`).get("a")[0].labels).length, 1);
});

test("buckets are summed over label sets and ordered", () => {
  const samples = parseMetrics(
      'h_bucket{le="+Inf",m="a"} 3\nh_bucket{le="1",m="a"} 1\nh_bucket{le="1",m="b"} 2\nh_bucket{le="+Inf",m="b"} 2\n');
  assert.deepEqual(buckets(samples, "h"), [{le: 1, count: 3}, {le: Infinity, count: 5}]);
  assert.deepEqual(buckets(samples, "none"), []);
});

const cumulative = (...pairs) => pairs.map(([le, count]) => ({le, count}));

test("quantiles are linear inside a bucket", () => {
  const h = cumulative([0.1, 0], [0.2, 10], [0.4, 20], [Infinity, 20]);
  const near = (q, expected) => assert.ok(Math.abs(quantile(q, h) - expected) < 1e-12, `${q}: ${quantile(q, h)}`);
  near(0.5, 0.2);
  near(0.25, 0.15);
  near(0.95, 0.38);
  near(1, 0.4);
  near(0, 0.1);
});

test("quantiles at the edges: nothing observed, all beyond the last bound, all in the first bucket", () => {
  assert.equal(quantile(0.5, []), null);
  assert.equal(quantile(0.5, cumulative([1, 0], [Infinity, 0])), null);
  assert.equal(quantile(0.5, cumulative([1, 0], [2, 0], [Infinity, 7])), 2);
  assert.equal(quantile(0.5, cumulative([1, 4], [Infinity, 4])), 0.5);
  assert.equal(quantile(0.5, cumulative([0, 4], [1, 4], [Infinity, 4])), 0);
});

test("quantiles lie in the bucket that holds the observation, for many random histograms", () => {
  let state = 7;
  const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  for (let round = 0; round < 500; ++round) {
    const values = Array.from({length: 1 + Math.floor(random() * 50)}, () => random() * 9).sort((a, b) => a - b);
    const bounds = [0.5, 1, 2, 3, 5, 8, 13, Infinity];
    const h = bounds.map((le) => ({le, count: values.filter((value) => value <= le).length}));
    for (const q of [0.01, 0.5, 0.95, 1]) {
      const true_ = values[Math.max(0, Math.ceil(q * values.length) - 1)];
      const bound = bounds.findIndex((le) => true_ <= le);
      const found = quantile(q, h);
      assert.ok(
          found >= (bounds[bound - 1] ?? 0) - 1e-9 && found <= bounds[bound] + 1e-9, `${q} of ${values}: ${found}`);
    }
  }
});

test("increases, and counters that began anew", () => {
  assert.equal(increase(3, 10), 7);
  assert.equal(increase(10, 3), 3);
  assert.equal(increase(null, 3), null);
  assert.deepEqual(
      bucketIncrease(cumulative([1, 2], [Infinity, 3]), cumulative([1, 5], [Infinity, 9])),
      cumulative([1, 3], [Infinity, 6]));
  assert.deepEqual(
      bucketIncrease(cumulative([1, 5], [Infinity, 9]), cumulative([1, 1], [Infinity, 1])),
      cumulative([1, 1], [Infinity, 1]));
  assert.deepEqual(bucketIncrease([], cumulative([1, 1])), cumulative([1, 1]));
});

const metrics = ({tokens = 0, texts = 0, hits = 0, queries = 0, drafts = 0, accepted = 0, fast = 0, slow = 0, forward = 0}) => `
vllm:generation_tokens_total{model_name="m"} ${tokens}
quire:pooled_texts_total{model_name="m"} ${texts}
vllm:prompt_tokens_total 0
vllm:prefix_cache_hits_total ${hits}
vllm:prefix_cache_queries_total ${queries}
vllm:spec_decode_num_draft_tokens_total ${drafts}
vllm:spec_decode_num_accepted_tokens_total ${accepted}
vllm:num_requests_running 2
quire:step_phase_seconds_total{phase="forward"} ${forward}
vllm:time_to_first_token_seconds_bucket{le="0.1"} ${fast}
vllm:time_to_first_token_seconds_bucket{le="1"} ${fast + slow}
vllm:time_to_first_token_seconds_bucket{le="+Inf"} ${fast + slow}
`;

test("the history gives rates between readings, and shares and percentiles over the window", () => {
  const history = new History(100);
  const first = history.add(readingOf(metrics({tokens: 100, hits: 5, queries: 10, fast: 1000}), 0), 30);
  assert.equal(first.generation, null);
  assert.equal(first.hitRate, null);
  assert.deepEqual(first.ttft, {p50: null, p95: null});  // what came before the page was opened does not count
  const second =
      history.add(readingOf(metrics({tokens: 150, texts: 8, hits: 8, queries: 14, drafts: 8, accepted: 6, fast: 1000, slow: 10, forward: 2}), 2), 30);
  assert.equal(second.generation, 25);
  assert.equal(second.texts, 4);
  assert.equal(second.hitRate, 0.75);
  assert.equal(first.acceptance, null);
  assert.equal(second.acceptance, 0.75);
  assert.equal(second.running, 2);
  assert.equal(second.waiting, null);
  assert.ok(second.ttft.p50 > 0.1);
  assert.equal(history.growth("phases", 30).get("forward"), 2);
  const idle =
      history.add(readingOf(metrics({tokens: 150, hits: 8, queries: 14, drafts: 8, accepted: 6, fast: 1000, slow: 10, forward: 2}), 33), 30);
  assert.equal(idle.generation, 0);
  assert.equal(idle.acceptance, null);
  assert.equal(idle.hitRate, null);
  assert.equal(idle.ttft.p50, null);
});

test("the history forgets what is old, and begins anew with the server", () => {
  const history = new History(10);
  for (let time = 0; time <= 50; ++time) history.add(readingOf(metrics({tokens: 100 * time}), time), 30);
  assert.equal(history.points.length, 11);
  assert.ok(history.points.every((point) => point.generation === 100));
  const restarted = history.add(readingOf(metrics({tokens: 7, fast: 1}), 51), 30);
  assert.equal(restarted.generation, 7);
  assert.equal(history.readings.length, 1);
});

test("a server without these metrics gives nulls, not zeros", () => {
  const history = new History(10);
  history.add(readingOf("up 1\n", 0), 30);
  const point = history.add(readingOf("up 1\n", 1), 30);
  assert.deepEqual([point.generation, point.kvUsage, point.ttft.p50, point.preemptions], [null, null, null, null]);
});
