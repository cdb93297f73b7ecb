// The C ABI over the C++ one. No exception leaves; what C holds are the three structs below.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

#include "base/parse_json.h"
#include "c_api/read_json.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"
#include "quire/quire.h"

struct quire_error {
  quire::Status status;
};

struct quire_engine {
  std::shared_ptr<quire::LLM> llm;  // with its requests, which read their tokens with its tokenizer
};

namespace quire::c_api {
namespace {

// Between the engine's thread, which rings, and whoever polls.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung_now;
  bool rung = false;
  void (*on_ready)(void*) = nullptr;
  void* user = nullptr;

  void ring() {
    const std::lock_guard lock(mutex);
    rung = true;
    rung_now.notify_one();
    if (on_ready != nullptr) on_ready(user);
  }
};

// What the pointers of a quire_update point to.
struct HeldLogprobs {
  std::vector<int32_t> tokens;  // [positions, columns]
  std::vector<float> logprobs;
  size_t columns = 0;
};
struct Held {
  engine::OutputDelta delta;
  HeldLogprobs logprobs;
  HeldLogprobs prompt_logprobs;
  std::string finish_reason;
};

}  // namespace
}  // namespace quire::c_api

struct quire_request {
  std::shared_ptr<quire::LLM> llm;
  std::shared_ptr<quire::c_api::Bell> bell = std::make_shared<quire::c_api::Bell>();
  std::mutex mutex;                                                 // of all below: cancel comes from anywhere
  std::vector<std::unique_ptr<quire::engine::Completion>> answers;  // [n]
  quire::c_api::Held held;
  size_t next = 0;  // whose turn it is
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = -1;
};

namespace quire::c_api {
namespace {

// What version 1 of each struct had: the least that a caller knows of it.
constexpr size_t kEngineOptionsSize = sizeof(quire_engine_options);
constexpr size_t kRequestOptionsSize = sizeof(quire_request_options);
constexpr size_t kUpdateSize = offsetof(quire_update, prompt_logprob_tokens);

quire_code code_of(const Status& status) {
  return static_cast<quire_code>(status.code());
}
static_assert(static_cast<int>(StatusCode::kOk) == QUIRE_OK);
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == QUIRE_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kResourceExhausted) == QUIRE_RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(StatusCode::kUnavailable) == QUIRE_UNAVAILABLE);
static_assert(static_cast<int>(StatusCode::kInternal) == QUIRE_INTERNAL);

// Runs what may fail, in any way.
template <typename Work>
quire_code guarded(quire_error** error, const Work& work) {
  Status status;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    if (error != nullptr) *error = new (std::nothrow) quire_error{resource_exhausted("out of memory")};
    return QUIRE_RESOURCE_EXHAUSTED;
  } catch (const std::exception& thrown) {
    status = internal_error("{}", thrown.what());
  }
  const quire_code code = code_of(status);
  if (!status.ok() && error != nullptr) *error = new (std::nothrow) quire_error{std::move(status)};
  return code;
}

// Of the caller's struct what both know of it.
template <typename Options>
Result<Options> known_part(const Options* given, size_t least, const char* what) {
  if (given == nullptr) return invalid_argument("{} is NULL", what).with_param(what);
  if (given->struct_size < least) {
    return invalid_argument("{}.struct_size is {}: expected sizeof({}), {} bytes or more", what, given->struct_size,
                            what, least)
        .with_param(what);
  }
  Options known = {};
  std::memcpy(&known, given, std::min(given->struct_size, sizeof(Options)));
  return known;
}

Result<std::vector<TokenId>> ids_of(const engine::Engine& engine, const quire_request_options& options) {
  const int kinds =
      int{options.prompt != nullptr} + int{options.prompt_tokens != nullptr} + int{options.messages_json != nullptr};
  if (kinds != 1) {
    return invalid_argument("one of prompt, prompt_tokens and messages_json is to be set, found {} of them", kinds)
        .with_param("prompt");
  }
  if (options.prompt_tokens != nullptr) {
    return std::vector<TokenId>(options.prompt_tokens, options.prompt_tokens + options.num_prompt_tokens);
  }
  if (options.prompt != nullptr) {
    if (engine.tokenizer() == nullptr) {
      return invalid_argument("a prompt of text needs a tokenizer, and this engine runs without one; give token ids")
          .with_param("prompt");
    }
    return engine.tokenizer()->encode(options.prompt, /*add_special_tokens=*/true);
  }
  boost::system::error_code error;
  const boost::json::value messages = parse_json(options.messages_json, error);
  if (error || !messages.is_array()) {
    return invalid_argument("messages_json must be a JSON list of messages{}", error ? ": " + error.message() : "")
        .with_param("messages");
  }
  QUIRE_ASSIGN_OR_RETURN(engine::ChatPrompt prompt, engine::render_chat(engine, messages.get_array(), {}));
  return std::move(prompt.ids);
}

Status submit(quire_engine* engine, const quire_request_options* given, quire_request** out) {
  if (engine == nullptr || out == nullptr) return invalid_argument("engine and request must not be NULL");
  QUIRE_ASSIGN_OR_RETURN(const quire_request_options options,
                         known_part(given, kRequestOptionsSize, "quire_request_options"));
  engine::Engine& inside = engine->llm->engine();
  engine::GenerationRequest request;
  if (options.sampling_json != nullptr) QUIRE_RETURN_IF_ERROR(read_sampling(options.sampling_json, request.params));
  QUIRE_ASSIGN_OR_RETURN(request.prompt, ids_of(inside, options));
  if (options.priority != 0 && inside.config().scheduling_policy != SchedulingPolicy::kPriority) {
    return invalid_argument("priority is {}, which needs \"scheduling_policy\": \"priority\"", options.priority)
        .with_param("priority");
  }
  request.priority = options.priority;
  if (options.lora_path != nullptr && options.lora_name == nullptr) {
    return invalid_argument("lora_path is given without lora_name, under which it is to be loaded")
        .with_param("lora_name");
  }
  if (options.cache_salt != nullptr) request.cache_salt = options.cache_salt;
  if (options.lora_name != nullptr) {
    request.adapter = options.lora_name;
    const bool load = options.lora_path != nullptr && !inside.knows_adapter(request.adapter);
    Status loaded;
    if (load) loaded = engine->llm->load_lora({request.adapter, options.lora_path});
    if (!loaded.ok() && !inside.knows_adapter(request.adapter)) return loaded;  // another thread may have been quicker
  }
  if (!(options.timeout_seconds >= 0 && options.timeout_seconds < 1e9)) {
    return invalid_argument("timeout_seconds must be in [0, 1e9), found {}", options.timeout_seconds)
        .with_param("timeout_seconds");
  }
  if (options.timeout_seconds > 0) {
    request.timeout = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(options.timeout_seconds * 1000)));
  }
  auto made = std::make_unique<quire_request>();
  made->llm = engine->llm;
  made->bell->on_ready = options.on_ready;
  made->bell->user = options.user;
  QUIRE_ASSIGN_OR_RETURN(made->answers, engine::Completion::start(inside, std::move(request)));
  made->num_prompt_tokens = made->answers.front()->num_prompt_tokens();
  for (const auto& answer : made->answers) {
    answer->on_ready([bell = made->bell] { bell->ring(); });
  }
  *out = made.release();
  return {};
}

void lay_out(const std::vector<PositionLogprobs>& positions, HeldLogprobs& held) {
  held.columns = 0;
  for (const PositionLogprobs& one : positions) held.columns = std::max(held.columns, 1 + one.top.size());
  held.tokens.assign(held.columns * positions.size(), kNoToken);
  held.logprobs.assign(held.tokens.size(), 0.0f);
  for (size_t row = 0; row < positions.size(); ++row) {
    const PositionLogprobs& one = positions[row];
    for (size_t column = 0; column <= one.top.size(); ++column) {
      const TokenLogprob& entry = column == 0 ? one.chosen : one.top[column - 1];
      held.tokens[row * held.columns + column] = entry.id;
      held.logprobs[row * held.columns + column] = entry.logprob;
    }
  }
}

quire_update shown(quire_request& request, size_t index) {
  Held& held = request.held;
  const engine::OutputDelta& delta = held.delta;
  if (delta.num_cached_tokens) {  // the least of the answers, as elsewhere: that one has computed the others' prompt
    const int64_t found = *delta.num_cached_tokens;
    request.num_cached_tokens = request.num_cached_tokens < 0 ? found : std::min(request.num_cached_tokens, found);
  }
  lay_out(delta.logprobs, held.logprobs);
  lay_out(delta.prompt_logprobs, held.prompt_logprobs);
  held.finish_reason = to_string(delta.finish);
  quire_update update = {};
  update.index = static_cast<int32_t>(index);
  update.text = delta.text.c_str();
  update.text_bytes = delta.text.size();
  update.tokens = delta.tokens.data();
  update.num_tokens = delta.tokens.size();
  if (held.logprobs.columns > 0) {
    update.logprob_tokens = held.logprobs.tokens.data();
    update.logprobs = held.logprobs.logprobs.data();
    update.logprobs_per_token = held.logprobs.columns;
  }
  if (held.prompt_logprobs.columns > 0) {
    update.prompt_logprob_tokens = held.prompt_logprobs.tokens.data();
    update.prompt_logprobs = held.prompt_logprobs.logprobs.data();
    update.num_prompt_logprobs = delta.prompt_logprobs.size();
    update.prompt_logprobs_per_token = held.prompt_logprobs.columns;
  }
  if (!delta.receipt.empty()) update.receipt = delta.receipt.c_str();
  if (delta.finish != FinishReason::kNone) update.finish_reason = held.finish_reason.c_str();
  const auto* stop_text = std::get_if<std::string>(&delta.stop_reason);
  if (stop_text != nullptr) update.stop_text = stop_text->c_str();
  const auto* stop_token = std::get_if<TokenId>(&delta.stop_reason);
  update.stop_token = stop_token != nullptr ? *stop_token : kNoToken;
  if (delta.finish == FinishReason::kError) update.error_message = delta.error.message().c_str();
  update.num_prompt_tokens = request.num_prompt_tokens;
  update.num_cached_tokens = request.num_cached_tokens;
  update.cumulative_logprob = delta.cumulative_logprob.value_or(0.0);
  return update;
}

// The answers take turns, so that none keeps the others from being heard.
std::optional<quire_poll_result> take(quire_request& request, quire_update& out) {
  const std::lock_guard lock(request.mutex);
  bool finished = true;
  for (size_t i = 0; i < request.answers.size(); ++i) {
    const size_t index = (request.next + i) % request.answers.size();
    std::optional<engine::OutputDelta> delta = request.answers[index]->try_take();
    finished = finished && request.answers[index]->finished();
    if (!delta) continue;
    request.held.delta = std::move(*delta);
    request.next = index + 1;
    quire_update update = shown(request, index);
    update.struct_size = out.struct_size;
    std::memcpy(&out, &update, std::min(out.struct_size, sizeof update));
    return QUIRE_POLL_UPDATE;
  }
  if (finished) return QUIRE_POLL_FINISHED;
  return std::nullopt;
}

quire_poll_result poll(quire_request& request, double seconds, quire_update& out) {
  using Clock = std::chrono::steady_clock;
  const bool forever = !(seconds >= 0 && seconds < 1e9);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(forever ? 0.0 : seconds));
  Bell& bell = *request.bell;
  while (true) {
    {
      const std::lock_guard lock(bell.mutex);
      bell.rung = false;
    }
    if (const auto result = take(request, out)) return *result;
    std::unique_lock lock(bell.mutex);
    const auto rung = [&bell] { return bell.rung; };
    if (forever) {
      bell.rung_now.wait(lock, rung);
    } else if (!bell.rung_now.wait_until(lock, until, rung)) {
      return QUIRE_POLL_NOTHING;
    }
  }
}

}  // namespace
}  // namespace quire::c_api

extern "C" {

const char* quire_version(void) {
  return QUIRE_VERSION;
}

int quire_abi_version(void) {
  return QUIRE_ABI_VERSION;
}

quire_code quire_error_code(const quire_error* error) {
  return error != nullptr ? quire::c_api::code_of(error->status) : QUIRE_OK;
}

const char* quire_error_message(const quire_error* error) {
  return error != nullptr ? error->status.message().c_str() : "";
}

const char* quire_error_param(const quire_error* error) {
  return error != nullptr ? error->status.param().c_str() : "";
}

void quire_error_free(quire_error* error) {
  delete error;
}

quire_code quire_engine_create(const quire_engine_options* options, quire_engine** engine, quire_error** error) {
  using namespace quire;
  return c_api::guarded(error, [&]() -> Status {
    if (engine == nullptr) return invalid_argument("engine must not be NULL");
    QUIRE_ASSIGN_OR_RETURN(const quire_engine_options known,
                           c_api::known_part(options, c_api::kEngineOptionsSize, "quire_engine_options"));
    if (known.model == nullptr || *known.model == '\0') {
      return invalid_argument("model is to name a .gguf file, or a folder with config.json and safetensors")
          .with_param("model");
    }
    EngineConfig config;
    if (known.config_json != nullptr) QUIRE_RETURN_IF_ERROR(c_api::read_config(known.config_json, config));
    config.model = known.model;
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<LLM> llm, LLM::create(std::move(config)));
    *engine = new quire_engine{std::move(llm)};
    return {};
  });
}

void quire_engine_destroy(quire_engine* engine) {
  if (engine == nullptr) return;
  engine->llm->engine().stop();
  delete engine;
}

int64_t quire_engine_max_model_len(const quire_engine* engine) {
  return engine != nullptr ? engine->llm->engine().max_model_len() : 0;
}

quire_code quire_submit(quire_engine* engine, const quire_request_options* options, quire_request** request,
                        quire_error** error) {
  return quire::c_api::guarded(error, [&] { return quire::c_api::submit(engine, options, request); });
}

quire_poll_result quire_poll(quire_request* request, double timeout_seconds, quire_update* update) {
  if (request == nullptr || update == nullptr || update->struct_size < quire::c_api::kUpdateSize) {
    return QUIRE_POLL_FINISHED;
  }
  return quire::c_api::poll(*request, timeout_seconds, *update);
}

void quire_cancel(quire_request* request) {
  if (request == nullptr) return;
  const std::lock_guard lock(request->mutex);
  for (const auto& answer : request->answers) {
    if (!answer->finished()) answer->cancel();
  }
}

void quire_request_destroy(quire_request* request) {
  if (request == nullptr) return;
  {
    const std::lock_guard lock(request->bell->mutex);  // held while a callback runs
    request->bell->on_ready = nullptr;
  }
  delete request;
}

}  // extern "C"
