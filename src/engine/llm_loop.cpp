// The part of the C++ API for callers that make the engine's steps themselves.
#include <algorithm>
#include <utility>

#include "engine/llm_impl.h"

namespace quire {

std::vector<uint64_t> ReadyList::take(bool wait) {
  std::vector<uint64_t> taken;
  {
    std::unique_lock lock(mutex);
    if (wait) bell.wait(lock, [this] { return !numbers.empty(); });
    taken.swap(numbers);
  }
  std::ranges::sort(taken);
  const auto repeated = std::ranges::unique(taken);
  taken.erase(repeated.begin(), repeated.end());
  return taken;
}

namespace {

// What the answers of a request have newly produced; nullopt: nothing.
std::optional<StepOutput> take_output(LoopRequest& request) {
  StepOutput output;
  bool changed = false;
  for (size_t i = 0; i < request.answers.size(); ++i) {
    engine::Completion& answer = *request.answers[i];
    std::optional<engine::OutputDelta> whole;
    while (std::optional<engine::OutputDelta> delta = answer.try_take()) {
      if (!whole) {
        whole = std::move(delta);
      } else {
        engine::append(*whole, std::move(*delta));
      }
    }
    if (!whole) continue;
    changed = true;
    request.usage.completion_tokens += static_cast<int64_t>(whole->tokens.size());
    if (whole->num_cached_tokens) {
      // Answers but the first share the prompt with it, which is not what is meant.
      request.fewest_cached =
          std::min(request.fewest_cached.value_or(*whole->num_cached_tokens), *whole->num_cached_tokens);
      request.usage.cached_tokens = *request.fewest_cached;
    }
    if (!whole->prompt_logprobs.empty()) output.prompt_logprobs = std::move(whole->prompt_logprobs);
    output.outputs.push_back({as_output(std::move(*whole)), static_cast<int32_t>(i)});
  }
  if (!changed) return std::nullopt;
  output.request_id = request.id;
  output.usage = request.usage;
  output.finished = std::ranges::all_of(request.answers, [](const auto& answer) { return answer->finished(); });
  return output;
}

}  // namespace

// REQUIRES: loop_mutex is held.
Status LLM::Impl::refusal_locked(const std::string& request_id) const {
  if (!loop_numbers.contains(request_id)) return {};
  return invalid_argument("there is an unfinished request \"{}\" already; give each an id of its own", request_id)
      .with_param("request_id");
}

Status LLM::Impl::add(std::string request_id, std::vector<TokenId> prompt, const SamplingParams& params,
                      RequestOptions options) {
  if (engine->drive() != Drive::kCaller) {
    return invalid_argument(
        "add_request() is for an LLM that was created with Drive::kCaller; this one answers on its own thread: use "
        "generate() or generate_async()");
  }
  if (request_id.empty()) return invalid_argument("the request's id is empty").with_param("request_id");
  {
    const std::lock_guard lock(loop_mutex);
    QUIRE_RETURN_IF_ERROR(refusal_locked(request_id));
  }
  QUIRE_ASSIGN_OR_RETURN(std::string adapter, adapter_of(options.lora));
  LoopRequest request{.id = request_id, .answers = {}, .usage = {}};
  // Not under the lock: a constraint of the answer may take a while to compile, and steps go on meanwhile.
  QUIRE_ASSIGN_OR_RETURN(request.answers,
                         engine::Completion::start(*engine, {.prompt = std::move(prompt),
                                                             .params = params,
                                                             .label = request_id,
                                                             .priority = options.priority,
                                                             .adapter = std::move(adapter),
                                                             .cache_salt = std::move(options.cache_salt),
                                                             .timeout = options.timeout}));
  request.usage.prompt_tokens = request.answers.front()->num_prompt_tokens();
  const std::lock_guard lock(loop_mutex);
  QUIRE_RETURN_IF_ERROR(refusal_locked(request_id));  // another thread was quicker: these answers are dropped
  const uint64_t number = next_number++;
  for (const auto& answer : request.answers) {
    answer->on_ready([list = ready, number] { list->add(number); });
  }
  loop_requests.emplace(number, std::move(request));
  loop_numbers.emplace(std::move(request_id), number);
  return {};
}

std::vector<StepOutput> LLM::Impl::take_outputs() {
  std::vector<StepOutput> outputs;
  const std::lock_guard lock(loop_mutex);
  for (const uint64_t number : ready->take()) {
    const auto found = loop_requests.find(number);
    if (found == loop_requests.end()) continue;  // aborted
    std::optional<StepOutput> output = take_output(found->second);
    if (!output) continue;
    if (output->finished) {
      loop_numbers.erase(output->request_id);
      loop_requests.erase(found);
    }
    outputs.push_back(std::move(*output));
  }
  return outputs;
}

void LLM::Impl::forget_all() {
  const std::lock_guard lock(loop_mutex);
  loop_requests.clear();
  loop_numbers.clear();
}

Status LLM::add_request(std::string request_id, const Prompt& prompt, const SamplingParams& params,
                        RequestOptions options) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt_ids(*impl_->engine, prompt));
  return impl_->add(std::move(request_id), std::move(ids), params, std::move(options));
}

Status LLM::add_request(std::string request_id, const std::vector<ChatMessage>& messages, const SamplingParams& params,
                        RequestOptions options) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt_ids(*impl_->engine, messages));
  return impl_->add(std::move(request_id), std::move(ids), params, std::move(options));
}

Result<std::vector<StepOutput>> LLM::step() {
  const Status stepped = impl_->engine->step();
  if (stepped.ok()) return impl_->take_outputs();
  if (!impl_->engine->healthy()) impl_->forget_all();
  return stepped;
}

bool LLM::abort_request(const std::string& request_id) {
  const std::lock_guard lock(impl_->loop_mutex);
  const auto found = impl_->loop_numbers.find(request_id);
  if (found == impl_->loop_numbers.end()) return false;
  impl_->loop_requests.erase(found->second);  // its streams tell the engine
  impl_->loop_numbers.erase(found);
  return true;
}

int64_t LLM::num_unfinished() const {
  const std::lock_guard lock(impl_->loop_mutex);
  return static_cast<int64_t>(impl_->loop_requests.size());
}

bool LLM::has_unfinished() const {
  return num_unfinished() > 0 || impl_->engine->has_work();
}

}  // namespace quire
