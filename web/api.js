// Requests to the server this page came from, and what went wrong with them in words.
import {apiKey} from "./page.js";
import {eventsOf} from "./sse.js";

// kind: "key", "model", "busy", "request", "server", "network"; advice: what the user can do; retryAfter: seconds or 0.
export class ApiError extends Error {
  constructor(kind, message, advice, {status = 0, retryAfter = 0} = {}) {
    super(message);
    Object.assign(this, {kind, advice, status, retryAfter});
  }
}

function refused(status, detail, retryAfter) {
  const more = {status, retryAfter};
  if (status === 401 || status === 403) {
    return apiKey() ?
        new ApiError("key", "The server does not accept this API key.", "Check the key and enter it again.", more) :
        new ApiError("key", "The server asks for an API key.", "Enter one that the server was started with.", more);
  }
  if (status === 404) {
    return new ApiError("model", detail || "The server does not have this model.",
                        "Choose a model from the list; the server may have been restarted with another one.", more);
  }
  if (status === 429) {
    const when = retryAfter > 0 ? `in about ${retryAfter} s` : "in a while";
    return new ApiError("busy", "The server has as many requests as it takes.", `Try again ${when}.`, more);
  }
  if (status === 503) {
    return new ApiError(
        "busy", detail || "The server is not ready.", "It may be restarting; try again in a while.", more);
  }
  if (status === 408) {
    return new ApiError("server", detail || "The answer took longer than it may.",
                        "Ask for a shorter answer, or try when the server has less to do.", more);
  }
  if (status >= 400 && status < 500) {
    return new ApiError(
        "request", detail || `The server refused the request (${status}).`,
        status === 413 ? "The conversation is too long; start a new one." :
                         "Change what it complains about (settings, system prompt, or the length of the conversation).",
        more);
  }
  return new ApiError("server", detail || `The server failed (${status}).`, "Its log says more; try again.", more);
}

// From a response that is no success.
async function errorOf(response) {
  let detail = "";
  try {
    const body = JSON.parse(await response.text());
    detail = String(body?.error?.message ?? body?.message ?? "").slice(0, 500);
  } catch {
    // Not the server's own words, a proxy's page perhaps.
  }
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return refused(response.status, detail, seconds > 0 ? seconds : 0);
}

const unreachable = () => new ApiError(
    "network", "The server cannot be reached.", "Is it running, and is this device still connected? Then try again.");

// `path` is relative to the page: a proxy may have it under a path of its own.
async function request(path, options = {}) {
  const headers = {...options.headers};
  if (apiKey()) {
    // A header holds Latin-1 only; fetch would throw an error that says nothing.
    if (!/^[\x21-\x7e]+$/.test(apiKey())) throw refused(401, "", 0);
    headers.Authorization = `Bearer ${apiKey()}`;
  }
  let response;
  try {
    response = await fetch(path, {...options, headers, cache: "no-store", credentials: "same-origin"});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

// Names of models, the default one first.
export async function listModels() {
  const body = await (await request("v1/models")).json();
  return (body.data ?? []).map((model) => ({
    id: String(model.id),
    maxLength: model.max_model_len ?? null,
    sampling: model.chat_sampling ?? {},  // what suits conversations with it
  }));
}

export async function metricsText(signal) {
  return (await request("metrics", {signal})).text();
}

// Posts a chat and gives each chunk of the answer. Throws ApiError, or AbortError when `signal` ends it.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}}),
    signal,
  });
  let done = false;
  try {
    for await (const event of eventsOf(response)) {
      if (event.data === "[DONE]") done = true;
      if (done) continue;  // to the body's end, so that the connection can be used again
      const chunk = JSON.parse(event.data);
      if (chunk.error) throw refused(Number(chunk.error.status) || 500, String(chunk.error.message ?? ""), 0);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    if (error instanceof SyntaxError) {
      throw new ApiError("server", "The server sent something that is no answer.", "Try again.");
    }
    if (!done) throw unreachable();
  }
  if (!done)
    throw new ApiError("network", "The connection ended before the answer did.", "What came is kept; try again.");
}
