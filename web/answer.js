// An answer while it comes: the chunks of a chat completion put together. Plain values, kept with the conversation.

export function newAnswer(model) {
  return {
    model,
    content: "",
    reasoning: "",
    toolCalls: [],   // {id, name, arguments: text}
    finish: null,    // the server's finish_reason, or "stopped" by the user
    error: null,     // {kind, message, advice}
    usage: null,     // {prompt, cached, completion}
    firstToken: null,  // seconds from the request to the first token
    seconds: null,     // to the last one
  };
}

function addToolCall(answer, part) {
  const index = Number.isInteger(part.index) && part.index >= 0 && part.index < 128 ? part.index : 0;
  while (answer.toolCalls.length <= index) answer.toolCalls.push({id: "", name: "", arguments: ""});
  const call = answer.toolCalls[index];
  if (part.id) call.id = String(part.id);
  if (part.function?.name) call.name += String(part.function.name);
  if (part.function?.arguments) call.arguments += String(part.function.arguments);
}

// Adds a chunk that came `seconds` after the request.
export function addChunk(answer, chunk, seconds) {
  if (chunk.model) answer.model = String(chunk.model);
  if (chunk.usage) {
    answer.usage = {
      prompt: chunk.usage.prompt_tokens ?? 0,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      completion: chunk.usage.completion_tokens ?? 0,
    };
  }
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning ?? delta.reasoning_content;
  const calls = Array.isArray(delta.tool_calls) ? delta.tool_calls : [];
  if (delta.content) answer.content += String(delta.content);
  if (reasoning) answer.reasoning += String(reasoning);
  for (const part of calls) addToolCall(answer, part);
  if (delta.content || reasoning || calls.length > 0) {
    answer.firstToken ??= seconds;
    answer.seconds = seconds;
  }
  if (choice.finish_reason) answer.finish = String(choice.finish_reason);
}

// Tokens per second after the first token; null where that says nothing, because all came at once.
export function tokensPerSecond(answer) {
  if (!answer.usage || answer.usage.completion < 2 || answer.firstToken === null) return null;
  const seconds = answer.seconds - answer.firstToken;
  return seconds > 0.01 ? (answer.usage.completion - 1) / seconds : null;
}

export function readableSeconds(seconds) {
  if (seconds < 0.9995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  return `${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
}

// "124 tokens · 43.1 tokens/s · first after 210 ms"
export function summary(answer) {
  const parts = [];
  if (answer.usage) parts.push(`${answer.usage.completion} ${answer.usage.completion === 1 ? "token" : "tokens"}`);
  const rate = tokensPerSecond(answer);
  if (rate !== null) parts.push(`${rate < 100 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  if (answer.firstToken !== null) parts.push(`first after ${readableSeconds(answer.firstToken)}`);
  if (answer.usage) {
    const cached = answer.usage.cached > 0 ? ` (${answer.usage.cached} cached)` : "";
    parts.push(`prompt ${answer.usage.prompt}${cached}`);
  }
  return parts.map((part) => part.replace(/ /g, "\u00a0")).join(" · ");
}

// Why an answer ended, where that needs saying.
export function ending(answer) {
  switch (answer.finish) {
    case "length": return "Ended at the limit of tokens.";
    case "stopped": return "Stopped.";
    case "abort": return "The server ended this answer.";
    case "repetition": return "Ended because it went round in circles.";
    default: return "";
  }
}
