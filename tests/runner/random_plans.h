// Plans and results in which everything may be there, for what carries them.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runner/executor.h"
#include "types/step_plan.h"

namespace quire::runner {

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  StepPlan plan() {
    StepPlan plan;
    plan.step = number<uint64_t>();
    fill(plan.moves, [this] { return BeamMove{id(), id(), token()}; });
    fill(plan.retired, [this] { return id(); });
    const auto shared = std::make_shared<const SamplingParams>(params());
    fill(plan.added, [&] {
      NewSequence added;
      added.id = id();
      fill(added.prompt, [this] { return token(); });
      fill(added.output, [this] { return token(); });
      added.params = below(2) == 0 ? shared : std::make_shared<const SamplingParams>(params());
      added.seed = number<uint64_t>();
      fill(added.eos_ids, [this] { return token(); });
      added.constraint = below(3);
      added.adapter = number<int32_t>();
      added.num_virtual_tokens = number<int32_t>();
      added.output_kind = static_cast<OutputKind>(below(3));
      added.second_text = number<int32_t>();
      added.pooled_from = number<int32_t>();
      fill(added.media, [this] { return MediaSpan{number<int32_t>(), number<int32_t>(), number<uint64_t>()}; });
      return added;
    });
    fill(plan.swap_out, [this] { return SwapCopy{block(), block()}; });
    fill(plan.swap_in, [this] { return SwapCopy{block(), block()}; });
    fill(plan.loads, [this] { return OffloadCopy{block(), block()}; });
    fill(plan.copies, [this] { return BlockCopy{block(), block()}; });
    for (uint32_t n = below(4); n > 0; --n) {
      std::vector<BlockId> table;
      fill(table, [this] { return block(); });
      tell_whole_table(plan, id(), static_cast<int32_t>(below(3)), table);
    }
    fill(plan.scheduled, [this] {
      ScheduledSequence run{.id = id(), .num_computed_tokens = number<int32_t>(), .num_new_tokens = number<int32_t>()};
      run.samples = flag();
      run.num_candidates = number<int32_t>();
      run.num_draft_tokens = static_cast<int32_t>(below(3));
      run.num_replayed_tokens = static_cast<int32_t>(below(3));
      return run;
    });
    for (const ScheduledSequence& run : plan.scheduled) {
      for (int32_t i = 0; i < run.num_draft_tokens; ++i) plan.draft_tokens.push_back(token());
    }
    plan.num_tokens = number<int32_t>();
    fill(plan.sampled, [this] { return SampledToken{id(), token()}; });
    fill(plan.stores, [this] { return OffloadCopy{block(), block()}; });
    return plan;
  }

  OffloadOrders orders() {
    OffloadOrders orders;
    orders.clear = flag();
    fill(orders.fetches, [this] { return OffloadFetch{number<uint64_t>(), block()}; });
    fill(orders.writes, [this] {
      OffloadWrite write{.slot = block(), .block = {.id = number<uint64_t>(), .text = {}}};
      StoredText& of = write.block.text;
      of.node = number<uint64_t>();
      of.parent = number<uint64_t>();
      of.salt = text();
      of.is_long = flag();
      of.group = number<int32_t>();
      fill(of.tokens, [this] { return token(); });
      return write;
    });
    return orders;
  }

  OffloadReports reports() {
    OffloadReports reports;
    const auto done = [this] { return OffloadReports::Done{number<uint64_t>(), flag()}; };
    fill(reports.fetched, done);
    fill(reports.written, done);
    fill(reports.dropped, [this] { return number<uint64_t>(); });
    return reports;
  }

  Result<ExecutedStep> step() {
    if (below(8) == 0) return error();
    ExecutedStep step;
    step.result.step = number<uint64_t>();
    fill(step.result.sequences, [this] {
      SequenceResult one{.id = id()};
      fill(one.tokens, [this] { return token(); });
      fill(one.candidates, [this] { return logprob(); });
      fill(one.logprobs, [this] { return position(); });
      fill(one.prompt_logprobs, [this] { return position(); });
      fill(one.pooled, [this] { return static_cast<float>(real()); });
      if (below(4) == 0) one.error = error();
      return one;
    });
    StepTimings& t = step.timings;
    for (double* seconds :
         {&t.prepare, &t.swap, &t.forward, &t.sample, &t.computed, &t.wait, &t.collect, &t.constraints}) {
      *seconds = real();
    }
    t.replayed = flag();
    t.ahead = flag();
    t.host_rows = number<int32_t>();
    t.draw_bytes = number<int64_t>();
    fill(step.states, [this] { return static_cast<float>(real()); });
    return step;
  }

  SamplingParams params() {
    SamplingParams p;
    for (int32_t* one : {&p.n, &p.top_k, &p.mirostat, &p.dry_allowed_length, &p.dry_penalty_last_n, &p.min_tokens}) {
      *one = number<int32_t>();
    }
    for (float* one :
         {&p.temperature, &p.top_p, &p.min_p, &p.presence_penalty, &p.frequency_penalty, &p.repetition_penalty,
          &p.typical_p, &p.top_n_sigma, &p.dynatemp_range, &p.dynatemp_exponent, &p.xtc_probability, &p.xtc_threshold,
          &p.mirostat_tau, &p.mirostat_eta, &p.dry_multiplier, &p.dry_base, &p.length_penalty}) {
      *one = static_cast<float>(real());
    }
    for (std::optional<int32_t>* one :
         {&p.best_of, &p.max_tokens, &p.beam_width, &p.logprobs, &p.prompt_logprobs, &p.truncate_prompt_tokens}) {
      *one = flag() ? std::optional(number<int32_t>()) : std::nullopt;
    }
    for (bool* one : {&p.ignore_eos, &p.include_stop_str_in_output, &p.use_beam_search, &p.skip_special_tokens,
                      &p.spaces_between_special_tokens, &p.detokenize, &p.deterministic}) {
      *one = flag();
    }
    if (flag()) p.seed = number<uint64_t>();
    for (std::vector<std::string>* one : {&p.dry_sequence_breakers, &p.bad_words, &p.stop}) {
      fill(*one, [this] { return text(); });
    }
    if (flag()) {
      std::vector<uint64_t> words;
      fill(words, [this] { return number<uint64_t>(); });
      p.dry_breakers = std::make_shared<const DryBreakers>(words, std::vector<std::vector<TokenId>>{{3, 4}, {3, 9, 1}});
    }
    fill(p.logit_bias, [this] { return std::pair(token(), static_cast<float>(real())); });
    if (flag()) p.allowed_token_ids = TokenSet({token(), token(), 5});
    fill(p.bad_words_ids, [this] { return std::vector<TokenId>{token(), token()}; });
    if (flag()) {
      p.structured_output = StructuredOutput{.kind = static_cast<StructuredOutput::Kind>(below(6)), .text = text()};
      fill(p.structured_output->choices, [this] { return text(); });
      p.structured_output->any_whitespace = flag();
      p.structured_output->special_tokens = flag();
    }
    p.stop_token_ids = TokenSet({token(), token()});
    if (flag()) p.repetition_detection = RepetitionDetection{number<int32_t>(), number<int32_t>(), number<int32_t>()};
    p.early_stopping = static_cast<EarlyStopping>(below(3));
    return p;
  }

  uint32_t below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

 private:
  template <typename T>
  T number() {
    return std::uniform_int_distribution<T>(std::numeric_limits<T>::min())(random_);
  }
  bool flag() { return below(2) == 0; }
  double real() { return std::normal_distribution<double>(0, 10)(random_); }
  SequenceId id() { return number<uint64_t>(); }
  TokenId token() { return static_cast<TokenId>(below(200'000)); }
  BlockId block() { return static_cast<BlockId>(below(1000)) - 1; }
  TokenLogprob logprob() { return {token(), static_cast<float>(real()), number<int32_t>()}; }
  PositionLogprobs position() {
    PositionLogprobs one{.chosen = logprob(), .top = {}};
    fill(one.top, [this] { return logprob(); });
    return one;
  }
  std::string text() {
    std::string text;
    for (uint32_t n = below(12); n > 0; --n) text.push_back(static_cast<char>(below(256)));
    return text;
  }
  Status error() {
    return Status(static_cast<StatusCode>(1 + below(9)), "it went wrong: " + text()).with_param(flag() ? "n" : "");
  }
  template <typename T, typename Make>
  void fill(std::vector<T>& list, const Make& make) {
    list.clear();
    for (uint32_t n = below(5); n > 0; --n) list.push_back(make());
  }

  std::mt19937 random_;
};

}  // namespace quire::runner
