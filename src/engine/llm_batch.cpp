// The blocking call of the C++ API: any number of prompts, of which as many are under way at a time as keep the engine
// busy.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "engine/llm_impl.h"

namespace quire {
namespace {

class ProgressLine {
 public:
  ProgressLine(bool wanted, size_t total)
      : shown_(wanted && isatty(STDERR_FILENO) != 0), total_(total), start_(std::chrono::steady_clock::now()) {}
  void update(size_t done, int64_t tokens) {
    if (!shown_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::fprintf(stderr, "\rprompts %zu/%zu, %lld tokens, %.1f tok/s ", done, total_, static_cast<long long>(tokens),
                 seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
    if (done == total_) std::fputc('\n', stderr);
  }

 private:
  bool shown_;
  size_t total_;
  std::chrono::steady_clock::time_point start_;
};

class Batch {
 public:
  // Answers `outputs`, whose prompts are set. All of them outlive it.
  Batch(engine::Engine& engine, const SamplingParams& params, std::vector<RequestOutput>& outputs, std::string adapter,
        ProgressLine& progress)
      : engine_(engine), params_(params), adapter_(std::move(adapter)), outputs_(outputs), progress_(progress) {}

  // Errors: why a prompt could not be submitted; those under way are cancelled then.
  Status run() {
    QUIRE_ASSIGN_OR_RETURN(prepared_, engine::Completion::prepare(engine_, params_));
    while (num_done_ < outputs_.size()) {
      QUIRE_RETURN_IF_ERROR(submit_some());
      QUIRE_RETURN_IF_ERROR(take_some());
    }
    return {};
  }

 private:
  struct Running {
    std::vector<std::unique_ptr<engine::Completion>> answers;  // [n]
    std::vector<engine::OutputDelta> whole;                    // so far
  };

  // As many sequences as may run at once wait beside those that do: the engine never lacks one.
  int64_t most_sequences() const { return 2 * int64_t{engine_.config().max_num_seqs}; }

  Status submit_some() {
    while (next_ < outputs_.size() && !full_) {
      const int64_t sequences = params_.num_sequences();
      if (!running_.empty() && num_sequences_ + sequences > most_sequences()) return {};
      auto started = engine::Completion::start(
          engine_,
          {.prompt = outputs_[next_].prompt_token_ids, .params = {}, .prepared = prepared_, .adapter = adapter_},
          running_.empty() ? engine::WhenFull::kWait : engine::WhenFull::kRefuse);
      if (started.ok()) {
        running_started(std::move(*started));
        num_sequences_ += sequences;
        continue;
      }
      if (started.status().code() != StatusCode::kResourceExhausted) return started.status();
      if (running_.empty() && !engine_.has_work()) return started.status();  // there will never be room
      full_ = true;
    }
    return {};
  }

  void running_started(std::vector<std::unique_ptr<engine::Completion>> answers) {
    const uint64_t number = next_++;
    Running& one = running_[number];
    one.answers = std::move(answers);
    one.whole.resize(one.answers.size());
    for (const auto& answer : one.answers) {
      answer->on_ready([list = ready_, number] { list->add(number); });
    }
  }

  Status take_some() {
    const bool makes_steps = engine_.drive() == Drive::kCaller;
    if (makes_steps) QUIRE_RETURN_IF_ERROR(engine_.step());
    if (makes_steps && running_.empty()) full_ = false;  // full of others' requests
    for (const uint64_t number : ready_->take(/*wait=*/!makes_steps)) {
      const auto found = running_.find(number);
      if (found != running_.end()) take(found->second, number);
    }
    return {};
  }

  void take(Running& one, uint64_t number) {
    for (size_t i = 0; i < one.answers.size(); ++i) {
      while (std::optional<engine::OutputDelta> delta = one.answers[i]->try_take()) {
        num_tokens_ += static_cast<int64_t>(delta->tokens.size());
        engine::append(one.whole[i], std::move(*delta));
      }
    }
    if (std::ranges::all_of(one.answers, [](const auto& answer) { return answer->finished(); })) {
      finish(one, outputs_[number]);
      running_.erase(number);
      num_sequences_ -= params_.num_sequences();
      full_ = false;
      ++num_done_;
    }
    progress_.update(num_done_, num_tokens_);
  }

  // Of several answers those but the first share the prompt with it, which is not what is meant.
  static void note_cached(int32_t found, RequestOutput& output) {
    output.num_cached_tokens = output.outputs.empty() ? found : std::min(found, output.num_cached_tokens);
  }

  static void finish(Running& one, RequestOutput& output) {
    for (engine::OutputDelta& whole : one.whole) {
      if (whole.num_cached_tokens) note_cached(*whole.num_cached_tokens, output);
      if (output.outputs.empty()) output.prompt_logprobs = std::move(whole.prompt_logprobs);
      output.outputs.push_back(as_output(std::move(whole)));
    }
    static_cast<CompletionOutput&>(output) = output.outputs.front();
  }

  engine::Engine& engine_;
  const SamplingParams& params_;
  const std::string adapter_;  // of all prompts; empty: none
  engine::PreparedParams prepared_;
  std::vector<RequestOutput>& outputs_;
  ProgressLine& progress_;
  std::shared_ptr<ReadyList> ready_ = std::make_shared<ReadyList>();
  std::unordered_map<uint64_t, Running> running_;  // by place in outputs_
  size_t next_ = 0;                                // to be submitted
  size_t num_done_ = 0;
  int64_t num_sequences_ = 0;  // of those running
  int64_t num_tokens_ = 0;
  bool full_ = false;  // nothing more fits before one of them is done
};

}  // namespace

Result<std::vector<RequestOutput>> LLM::generate(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                                 GenerateOptions options) {
  std::vector<RequestOutput> outputs(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(outputs[i].prompt_token_ids, prompt_ids(*impl_->engine, prompts[i]));
    QUIRE_RETURN_IF_ERROR(impl_->engine->check(outputs[i].prompt_token_ids, params));
  }
  QUIRE_ASSIGN_OR_RETURN(std::string adapter, impl_->adapter_of(options.lora));
  ProgressLine progress(options.progress, prompts.size());
  QUIRE_RETURN_IF_ERROR(Batch(*impl_->engine, params, outputs, std::move(adapter), progress).run());
  return outputs;
}

}  // namespace quire
