import assert from "node:assert/strict";
import test from "node:test";
import {addChunk, ending, newAnswer, readableSeconds, summary, tokensPerSecond} from "../../web/answer.js";
import {SETTINGS, newConversation, requestBody, settingProblem, titleOf, toolsProblem} from "../../web/conversation.js";
import {webcrypto} from "node:crypto";
import {niceCeiling, pieces} from "../../web/chart.js";

globalThis.crypto ??= webcrypto;  // Node 18

const chunk = (delta, more = {}) => ({model: "m", choices: [{index: 0, delta, finish_reason: null, ...more}]});

test("content, reasoning under both its names, and tool calls are put together", () => {
  const answer = newAnswer("");
  addChunk(answer, chunk({role: "assistant", content: ""}), 0.1);
  assert.equal(answer.firstToken, null);
  addChunk(answer, chunk({reasoning: "Let me "}), 0.2);
  addChunk(answer, chunk({reasoning_content: "think."}), 0.3);
  addChunk(answer, chunk({content: "Hello"}), 0.4);
  addChunk(
      answer, chunk({tool_calls: [{index: 0, id: "c1", type: "function", function: {name: "add", arguments: ""}}]}),
      0.5);
  addChunk(
      answer,
      chunk({tool_calls: [{index: 0, function: {arguments: '{"a":'}}, {index: 1, id: "c2", function: {name: "sub"}}]}),
      0.6);
  addChunk(answer, chunk({tool_calls: [{index: 0, function: {arguments: "1}"}}]}), 0.7);
  addChunk(answer, chunk({}, {finish_reason: "tool_calls"}), 0.8);
  addChunk(
      answer, {choices: [], usage: {prompt_tokens: 9, completion_tokens: 6, prompt_tokens_details: {cached_tokens: 4}}},
      0.9);
  assert.equal(answer.content, "Hello");
  assert.equal(answer.reasoning, "Let me think.");
  assert.deepEqual(
      answer.toolCalls, [{id: "c1", name: "add", arguments: '{"a":1}'}, {id: "c2", name: "sub", arguments: ""}]);
  assert.equal(answer.finish, "tool_calls");
  assert.deepEqual(answer.usage, {prompt: 9, cached: 4, completion: 6});
  assert.deepEqual([answer.firstToken, answer.seconds], [0.2, 0.7]);
  assert.ok(Math.abs(tokensPerSecond(answer) - 10) < 1e-9);
  assert.equal(
      summary(answer).replaceAll("\u00a0", " "), "6 tokens · 10.0 tokens/s · first after 200 ms · prompt 9 (4 cached)");
});

test("chunks that are not as they should be do no harm", () => {
  const answer = newAnswer("");
  for (const odd of [{}, {choices: null}, {choices: [{}]}, chunk({tool_calls: "x"}), chunk({tool_calls: [{index: -1}]}),
                     chunk({tool_calls: [{index: 1e9, function: {}}]}), {usage: {}}]) {
    addChunk(answer, odd, 1);
  }
  assert.equal(answer.toolCalls.length, 1);
  assert.equal(tokensPerSecond(answer), null);
});

test("times and endings in words", () => {
  assert.deepEqual(
      [0, 0.0004, 0.21, 0.9996, 3.456, 12.34].map(readableSeconds),
      ["1 ms", "1 ms", "210 ms", "1.00 s", "3.46 s", "12.3 s"]);
  assert.equal(ending({finish: "stop"}), "");
  assert.match(ending({finish: "length"}), /limit/);
});

test("a request has the chosen answers, tool results, and only the settings that are set and right", () => {
  const answer = (content, toolCalls = []) => ({...newAnswer("m"), content, toolCalls});
  const messages = [
    {role: "user", content: "q"},
    {role: "assistant", answers: [answer("first"), answer("", [{id: "c", name: "f", arguments: "{}"}])], chosen: 1},
    {role: "tool", callId: "c", name: "f", content: "7"},
  ];
  const settings = {
    model: "m",
    system: "Be brief.",
    temperature: "0",
    top_p: "1.5",
    top_k: "2.5",
    seed: "x",
    max_tokens: "64",
    tools: '[{"type":"function"}]',
    min_p: " "
  };
  assert.deepEqual(requestBody(settings, messages), {
    model: "m",
    temperature: 0,
    max_tokens: 64,
    tools: [{type: "function"}],
    messages: [
      {role: "system", content: "Be brief."},
      {role: "user", content: "q"},
      {
        role: "assistant",
        content: "",
        tool_calls: [{id: "c", type: "function", function: {name: "f", arguments: "{}"}}]
      },
      {role: "tool", tool_call_id: "c", content: "7"},
    ],
  });
  messages[1].chosen = 0;
  assert.equal(requestBody({}, messages).messages[1].content, "first");
  assert.deepEqual(requestBody({}, []), {model: "", messages: []});
});

test("what is wrong with a setting is said", () => {
  const [temperature] = SETTINGS;
  const seed = SETTINGS.find((setting) => setting.name === "seed");
  assert.equal(settingProblem(temperature, " "), "");
  assert.equal(settingProblem(temperature, "2"), "");
  assert.match(settingProblem(temperature, "2.1"), /from 0 to 2/);
  assert.match(settingProblem(temperature, "warm"), /number/);
  assert.match(settingProblem(seed, "1.5"), /whole/);
  assert.equal(toolsProblem(""), "");
  assert.match(toolsProblem("{"), /not JSON/);
  assert.match(toolsProblem("{}"), /list/);
});

test("titles are the first line, cut between characters", () => {
  assert.equal(titleOf("  Hello\nthere"), "Hello");
  assert.equal(titleOf(" \n "), "New conversation");
  assert.equal([...titleOf("😀".repeat(100))].length, 48);
  assert.notEqual(newConversation().id, newConversation().id);
});

test("charts: round scales, and lines that break where nothing is known", () => {
  assert.deepEqual([0, 0.3, 1, 1.01, 24, 26, 700, 1e6].map(niceCeiling), [1, 0.3, 1, 1.5, 25, 30, 800, 1e6]);
  assert.deepEqual(pieces([[0, 1], [1, 2], [2, null], [3, 4], [9, 5]], 3), [[[0, 1], [1, 2]], [[3, 4]], [[9, 5]]]);
});

test("what suits the model is sent where the settings are empty, and a setting goes before it", () => {
  const advised = {temperature: 0.2, top_p: 0.9, unknown: 3, min_p: "0.1"};
  const ask = [{role: "user", content: "Hi"}];
  const body = requestBody({top_p: "0.5", temperature: ""}, ask, advised);
  assert.equal(body.temperature, 0.2);
  assert.equal(body.top_p, 0.5);
  assert.ok(!("unknown" in body) && !("min_p" in body));
  assert.equal(requestBody({temperature: "hot"}, ask, advised).temperature, 0.2);
  assert.ok(!("temperature" in requestBody({}, ask)));
});
