#include "quire/llm.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "engine/chat.h"
#include "engine/llm_impl.h"

namespace quire {
Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine, const Prompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) return *ids;
  if (engine.tokenizer() == nullptr) {
    return invalid_argument("a prompt of text needs a tokenizer, and this engine runs without one; give token ids")
        .with_param("prompt");
  }
  return engine.tokenizer()->encode(std::get<std::string>(prompt), /*add_special_tokens=*/true);
}

Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine, const std::vector<ChatMessage>& messages) {
  boost::json::array list;
  for (const ChatMessage& message : messages) {
    list.push_back(boost::json::object{{"role", message.role}, {"content", message.content}});
  }
  QUIRE_ASSIGN_OR_RETURN(engine::ChatPrompt prompt, engine::render_chat(engine, list, {}));
  return std::move(prompt.ids);
}

CompletionOutput as_output(engine::OutputDelta delta) {
  return {.text = std::move(delta.text),
          .token_ids = std::move(delta.tokens),
          .logprobs = std::move(delta.logprobs),
          .cumulative_logprob = delta.cumulative_logprob,
          .receipt = std::move(delta.receipt),
          .finish_reason = delta.finish,
          .stop_reason = std::move(delta.stop_reason),
          .error = std::move(delta.error)};
}

struct Generation::State : std::enable_shared_from_this<Generation::State> {
  std::mutex mutex;  // held while the callback runs
  std::condition_variable done_bell;
  std::unique_ptr<engine::Completion> completion;
  std::function<void(const RequestUpdate&)> on_update;
  std::atomic<std::thread::id> calling{};  // the thread inside the callback
  bool done = false;

  void dispatch() {
    const std::lock_guard lock(mutex);
    while (!done) {
      std::optional<engine::OutputDelta> delta = completion->try_take();
      if (!delta) return;
      calling = std::this_thread::get_id();
      on_update({.text = std::move(delta->text),
                 .token_ids = std::move(delta->tokens),
                 .finish_reason = delta->finish,
                 .error = std::move(delta->error)});
      calling = std::thread::id();
      if (completion->finished()) finish();
    }
  }
  void finish() {
    done = true;
    done_bell.notify_all();
  }
};

Generation::Generation(std::shared_ptr<State> state) : state_(std::move(state)) {}
Generation::~Generation() {
  cancel();
}

void Generation::cancel() {
  const bool inside_callback = state_->calling == std::this_thread::get_id();
  std::unique_lock lock(state_->mutex, std::defer_lock);
  if (!inside_callback) lock.lock();
  if (state_->done) return;
  state_->completion->cancel();
  state_->finish();
}

void Generation::wait() {
  std::unique_lock lock(state_->mutex);
  state_->done_bell.wait(lock, [&] { return state_->done; });
}

void LLM::Impl::dispatch_loop() {
  std::unique_lock lock(dispatcher->mutex);
  while (true) {
    dispatcher->bell.wait(lock, [&] { return dispatcher->stopping || !dispatcher->ready.empty(); });
    if (dispatcher->ready.empty()) return;  // stopping, and all was handed out
    const std::shared_ptr<Generation::State> state = dispatcher->ready.front().lock();
    dispatcher->ready.pop_front();
    lock.unlock();
    if (state) state->dispatch();
    lock.lock();
  }
}

LLM::LLM(std::unique_ptr<engine::Engine> engine) : impl_(std::make_unique<Impl>()) {
  impl_->engine = std::move(engine);
  if (impl_->engine->drive() == Drive::kCaller) return;
  impl_->thread = std::thread([impl = impl_.get()] { impl->dispatch_loop(); });
}

LLM::~LLM() {
  impl_->engine->stop();  // ends every stream; the dispatcher hands out the ends, for which it needs the tokenizer
  {
    const std::lock_guard lock(impl_->dispatcher->mutex);
    impl_->dispatcher->stopping = true;
    impl_->dispatcher->bell.notify_all();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

engine::Engine& LLM::engine() {
  return *impl_->engine;
}

Result<std::string> LLM::Impl::adapter_of(const std::optional<LoraRequest>& lora) const {
  if (!lora) return std::string();
  if (lora->name.empty()) return invalid_argument("the adapter's name is empty").with_param("lora_name");
  if (!lora->path.empty() && !engine->knows_adapter(lora->name)) {
    Status loaded = engine->load_adapter(lora->name, lora->path);
    // Another thread was quicker.
    if (!loaded.ok() && !engine->knows_adapter(lora->name)) return loaded;
  }
  return lora->name;
}

Status LLM::load_lora(const LoraRequest& lora, bool replace) {
  return impl_->engine->load_adapter(lora.name, lora.path, replace);
}

Status LLM::unload_lora(const std::string& name) {
  return impl_->engine->unload_adapter(name);
}

Result<RequestOutput> LLM::chat(const std::vector<ChatMessage>& messages, const SamplingParams& params) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt_ids(*impl_->engine, messages));
  QUIRE_ASSIGN_OR_RETURN(std::vector<RequestOutput> outputs, generate({std::move(ids)}, params, {.progress = false}));
  return std::move(outputs.front());
}

Result<std::unique_ptr<Generation>> LLM::generate_async(const Prompt& prompt, const SamplingParams& params,
                                                        std::function<void(const RequestUpdate&)> on_update,
                                                        const std::optional<LoraRequest>& lora) {
  if (impl_->engine->drive() == Drive::kCaller) {
    return invalid_argument(
        "generate_async() needs an engine thread, and this LLM was created with Drive::kCaller: its steps are made by "
        "step(), whose outputs those of add_request() are");
  }
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt_ids(*impl_->engine, prompt));
  if (params.n != 1) return invalid_argument("generate_async gives one answer; n is {}", params.n).with_param("n");
  QUIRE_ASSIGN_OR_RETURN(std::string adapter, impl_->adapter_of(lora));
  auto state = std::make_shared<Generation::State>();
  state->on_update = std::move(on_update);
  QUIRE_ASSIGN_OR_RETURN(
      state->completion,
      engine::Completion::start_one(*impl_->engine,
                                    {.prompt = std::move(ids), .params = params, .adapter = std::move(adapter)}));
  state->completion->on_ready([weak = std::weak_ptr(state), dispatcher = impl_->dispatcher] {
    const std::lock_guard lock(dispatcher->mutex);
    dispatcher->ready.push_back(weak);
    dispatcher->bell.notify_one();
  });
  return std::make_unique<Generation>(std::move(state));
}

}  // namespace quire
