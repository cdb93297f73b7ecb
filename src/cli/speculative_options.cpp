#include "cli/speculative_options.h"

#include <memory>
#include <string>

#include <boost/json.hpp>

#include "base/parse_json.h"
#include "engine/read_speculative.h"

namespace quire::cli {
namespace {
namespace json = boost::json;

// What the flags say, each a member of the same object; each makes the configuration anew.
class SpeculativeFlags {
 public:
  explicit SpeculativeFlags(EngineConfig& config) : config_(config) {}

  void take_all(const std::string& text) {
    boost::system::error_code error;
    const json::value value = parse_json(text, error);
    if (error || !value.is_object()) {
      throw CLI::ValidationError("--speculative-config", "expected a JSON object, got " + text);
    }
    for (const auto& [name, member] : value.get_object()) object_[name] = member;
    make("--speculative-config");
  }
  void take(const char* flag, const char* member, json::value value) {
    object_[member] = std::move(value);
    make(flag);
  }

 private:
  void make(const char* flag) {
    const auto config = engine::read_speculative_config(object_);
    if (!config.ok()) throw CLI::ValidationError(flag, config.status().message());
    config_.speculative_config = *config;
  }

  EngineConfig& config_;
  json::object object_;
};

}  // namespace

void add_speculative_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kGroup = "Speculation";
  const auto flags = std::make_shared<SpeculativeFlags>(config);
  app.add_option_function<std::string>(
         "--speculative-config", [flags](const std::string& text) { flags->take_all(text); },
         "Guess tokens ahead, which changes no answer: a JSON object with method (ngram, suffix, draft_model, dflash, "
         "eagle, eagle3, medusa, mtp), model, "
         "num_speculative_tokens, prompt_lookup_min and prompt_lookup_max, ...: docs/speculation.md")
      ->group(kGroup);
  const auto word = [&](const char* name, const char* member, const char* help) {
    app.add_option_function<std::string>(
           name, [flags, name, member](const std::string& text) { flags->take(name, member, json::value(text)); }, help)
        ->group(kGroup);
  };
  const auto number = [&](const char* name, const char* member, const char* help) {
    app.add_option_function<int64_t>(
           name, [flags, name, member](int64_t value) { flags->take(name, member, json::value(value)); }, help)
        ->group(kGroup);
  };
  const auto real = [&](const char* names, const char* member, const char* help) {
    app.add_option_function<double>(
           names, [flags, names, member](double value) { flags->take(names, member, json::value(value)); }, help)
        ->group(kGroup);
  };
  word("--spec-method", "method", "The same: its method");
  word("--spec-model", "model", "The same: its model, which drafts");
  number("--spec-tokens", "num_speculative_tokens", "The same: its num_speculative_tokens");
  word("--speculative-model", "model", "The older form: [ngram], suffix, or a model that drafts");
  number("--num-speculative-tokens", "num_speculative_tokens", "Most tokens guessed ahead of a sequence in a step");
  word("--speculative-model-quantization", "quantization",
       "What a model that drafts, or a head, is rounded to at load: int8, int4, fp8");
  number("--speculative-max-model-len", "max_model_len", "The longest text that it guesses for");
  number("--speculative-draft-tensor-parallel-size", "draft_tensor_parallel_size",
         "1: a model that drafts is computed whole, by the engine's process, beside workers too");
  number("--ngram-prompt-lookup-max", "prompt_lookup_max", "Of method ngram: most of the last tokens looked for");
  number("--ngram-prompt-lookup-min", "prompt_lookup_min", "Of method ngram: fewest of the last tokens looked for");
  number("--speculative-disable-by-batch-size", "disable_by_batch_size",
         "No guesses in steps that sample for more sequences; 0: as far as it is a gain");
  word(
      "--spec-decoding-acceptance-method", "acceptance_method",
      "How guesses are accepted: exact (the model's own draw decides, so that answers are those without guesses), "
      "rejection_sampler (a model's guesses are drawn; answers are distributed as without), typical_acceptance_sampler "
      "(what is likely enough, which changes answers)");
  real(
      "--posterior-threshold,--typical-acceptance-sampler-posterior-threshold", "posterior_threshold",
      "Of typical_acceptance_sampler: a guess is accepted whose probability is more than this (0.09), or more than the "
      "next");
  real("--posterior-alpha,--typical-acceptance-sampler-posterior-alpha", "posterior_alpha",
       "Of typical_acceptance_sampler: times exp(-entropy), the same (0.3): the less sure the model, the more is "
       "accepted");
}

}  // namespace quire::cli
