#include "runner/plan_codec.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "runner/wire_format.h"

namespace quire::runner {
namespace wire {

template <>
inline constexpr EarlyStopping kLast<EarlyStopping> = EarlyStopping::kNever;
template <>
inline constexpr OutputKind kLast<OutputKind> = OutputKind::kHiddenState;
template <>
inline constexpr StructuredOutput::Kind kLast<StructuredOutput::Kind> = StructuredOutput::Kind::kStructuralTag;

// What is written of each struct, and read. A field that is added belongs here, and raises kPlanCodecVersion.

template <typename A>
void fields(A& all, typename A::template Of<RepetitionDetection> x) {
  all(x.max_pattern_size, x.min_pattern_size, x.min_count);
}
template <typename A>
void fields(A& all, typename A::template Of<StructuredOutput> x) {
  all(x.kind, x.text, x.choices, x.any_whitespace, x.special_tokens);
}
template <typename A>
void fields(A& all, typename A::template Of<SamplingParams> x) {
  all(x.n, x.best_of);
  all(x.temperature, x.top_p, x.top_k, x.min_p, x.presence_penalty, x.frequency_penalty, x.repetition_penalty, x.seed);
  all(x.typical_p, x.top_n_sigma, x.dynatemp_range, x.dynatemp_exponent, x.xtc_probability, x.xtc_threshold);
  all(x.mirostat, x.mirostat_tau, x.mirostat_eta);
  all(x.dry_multiplier, x.dry_base, x.dry_allowed_length, x.dry_penalty_last_n, x.dry_sequence_breakers,
      x.dry_breakers);
  all(x.logit_bias, x.allowed_token_ids, x.bad_words, x.bad_words_ids, x.structured_output);
  all(x.max_tokens, x.min_tokens, x.ignore_eos, x.stop, x.stop_token_ids, x.include_stop_str_in_output,
      x.repetition_detection);
  all(x.use_beam_search, x.beam_width, x.length_penalty, x.early_stopping);
  all(x.logprobs, x.prompt_logprobs, x.skip_special_tokens, x.spaces_between_special_tokens, x.detokenize,
      x.deterministic, x.truncate_prompt_tokens);
}
// Parameters and their number.
struct ToldParams {
  uint64_t number = 0;
  SamplingParams params;
};
template <typename A>
void fields(A& all, typename A::template Of<ToldParams> x) {
  all(x.number, x.params);
}
template <typename A>
void fields(A& all, typename A::template Of<MediaSpan> x) {
  all(x.first, x.count, x.media);
}
// But params, which are named beside it.
template <typename A>
void fields(A& all, typename A::template Of<NewSequence> x) {
  all(x.id, x.prompt, x.output, x.seed, x.eos_ids, x.constraint, x.adapter, x.num_virtual_tokens, x.output_kind,
      x.second_text, x.pooled_from, x.media);
}
template <typename A>
void fields(A& all, typename A::template Of<ScheduledSequence> x) {
  all(x.id, x.num_computed_tokens, x.num_new_tokens, x.samples, x.num_candidates, x.num_draft_tokens,
      x.num_replayed_tokens);
}
template <typename A>
void fields(A& all, typename A::template Of<BlockCopy> x) {
  all(x.source, x.destination);
}
template <typename A>
void fields(A& all, typename A::template Of<SwapCopy> x) {
  all(x.block, x.slot);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadCopy> x) {
  all(x.block, x.slot);
}
template <typename A>
void fields(A& all, typename A::template Of<BeamMove> x) {
  all(x.id, x.source, x.token);
}
template <typename A>
void fields(A& all, typename A::template Of<SampledToken> x) {
  all(x.id, x.token);
}
template <typename A>
void fields(A& all, typename A::template Of<TableChange> x) {
  all(x.id, x.group, x.num_blocks, x.first, x.count);
}
template <typename A>
void fields(A& all, typename A::template Of<DraftProbability> x) {
  all(x.token, x.probability);
}
// Behind `added` and its parameters.
template <typename A>
void fields(A& all, typename A::template Of<StepPlan> x) {
  all(x.step, x.sampled, x.moves, x.retired, x.swap_out, x.swap_in, x.loads, x.copies, x.table_changes, x.table_blocks,
      x.scheduled, x.draft_tokens, x.draft_choices, x.draft_probabilities, x.num_tokens, x.stores);
}

template <typename A>
void fields(A& all, typename A::template Of<TokenLogprob> x) {
  all(x.id, x.logprob, x.rank);
}
template <typename A>
void fields(A& all, typename A::template Of<PositionLogprobs> x) {
  all(x.chosen, x.top);
}
template <typename A>
void fields(A& all, typename A::template Of<SequenceResult> x) {
  all(x.id, x.tokens, x.candidates, x.logprobs, x.prompt_logprobs, x.pooled, x.error);
}
template <typename A>
void fields(A& all, typename A::template Of<StepTimings> x) {
  all(x.prepare, x.swap, x.forward, x.sample, x.computed, x.wait, x.replayed, x.ahead, x.host_rows, x.draw_bytes,
      x.collect, x.constraints);
}
template <typename A>
void fields(A& all, typename A::template Of<ExecutedStep> x) {
  all(x.result.step, x.result.sequences, x.timings, x.states);
}
template <typename A>
void fields(A& all, typename A::template Of<MaskQuestion> x) {
  all(x.constraint, x.answer, x.forget, x.tokens, x.num_words);
}
template <typename A>
void fields(A& all, typename A::template Of<MaskAnswer> x) {
  all(x.found, x.num_accepted, x.restricts, x.mask, x.trouble);
}

template <typename A>
void fields(A& all, typename A::template Of<StoredText> x) {
  all(x.node, x.parent, x.salt, x.is_long, x.group, x.tokens);
}
template <typename A>
void fields(A& all, typename A::template Of<StoredBlock> x) {
  all(x.id, x.text);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadWrite> x) {
  all(x.slot, x.block);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadFetch> x) {
  all(x.id, x.slot);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadExport> x) {
  all(x.id, x.slot);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadImport> x) {
  all(x.id, x.slot, x.bytes);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadOrders> x) {
  all(x.clear, x.fetches, x.writes, x.exports, x.imports);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadReports::Done> x) {
  all(x.id, x.ok);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadReports::Exported> x) {
  all(x.id, x.bytes);
}
template <typename A>
void fields(A& all, typename A::template Of<OffloadReports> x) {
  all(x.fetched, x.written, x.dropped, x.exported, x.imported);
}

}  // namespace wire

namespace {

using wire::decode_fields;
using wire::encode_fields;
using wire::Kind;
using wire::Reader;
using wire::ToldParams;
using wire::Writer;

// Lists that stand beside what says how long their parts are.
Status check_parts(const StepPlan& plan) {
  size_t count = 0;
  for (const TableChange& change : plan.table_changes) {
    const bool lies_inside = change.group >= 0 && change.first >= 0 && change.count >= 0 && change.num_blocks >= 0 &&
                             change.first <= change.num_blocks - change.count;
    if (!lies_inside) {
      return data_loss("a plan changes entries {} to {} of a block table of {}", change.first,
                       int64_t{change.first} + change.count, change.num_blocks);
    }
    count += static_cast<size_t>(change.count);
  }
  if (count != plan.table_blocks.size()) {
    return data_loss("a plan changes {} entries of block tables and names {} blocks", count, plan.table_blocks.size());
  }
  int64_t drafts = 0;
  for (const ScheduledSequence& run : plan.scheduled) {
    if (run.num_draft_tokens < 0) return data_loss("a run has {} draft tokens", run.num_draft_tokens);
    if (run.num_replayed_tokens < 0) return data_loss("a run replays {} tokens", run.num_replayed_tokens);
    drafts += run.num_draft_tokens;
  }
  if (drafts != static_cast<int64_t>(plan.draft_tokens.size())) {
    return data_loss("a plan has {} draft tokens for runs of {}", plan.draft_tokens.size(), drafts);
  }
  int64_t choices = 0;
  for (const int32_t of_one : plan.draft_choices) {
    if (of_one < 0) return data_loss("a draft token was drawn from {} others", of_one);
    choices += of_one;
  }
  if (plan.draft_choices.size() <= plan.draft_tokens.size() &&
      choices == static_cast<int64_t>(plan.draft_probabilities.size())) {
    return {};
  }
  return data_loss("a plan has {} probabilities for draft tokens that were drawn from {}",
                   plan.draft_probabilities.size(), choices);
}

}  // namespace

std::string PlanWriter::write(const StepPlan& plan) {
  std::vector<uint64_t> forgotten;
  std::vector<const SamplingParams*> told;
  std::vector<uint64_t> numbers;  // of `told`
  std::vector<uint64_t> names;    // of `added`
  if (known_.size() >= 2 * swept_size_ + 16) {
    std::erase_if(known_, [&](const auto& entry) {
      if (entry.second.params.expired()) forgotten.push_back(entry.second.number);
      return entry.second.params.expired();
    });
    swept_size_ = known_.size();
  }
  for (const NewSequence& added : plan.added) {
    QUIRE_CHECK(added.params != nullptr);
    Known& known = known_[added.params.get()];
    if (known.params.expired()) {  // nobody had them yet, or others lay there, which are gone
      if (known.number != 0) forgotten.push_back(known.number);
      known = {.number = ++last_number_, .params = added.params};
      told.push_back(added.params.get());
      numbers.push_back(known.number);
    }
    names.push_back(known.number);
  }
  Writer writer(Kind::kPlan);
  writer(forgotten);
  writer.count(told.size());
  for (size_t i = 0; i < told.size(); ++i) writer(numbers[i], *told[i]);
  writer(names);
  for (const NewSequence& added : plan.added) writer(added);
  writer(plan);
  return writer.take();
}

Result<StepPlan> PlanReader::read(std::string_view message) {
  Reader reader(message, Kind::kPlan);
  StepPlan plan;
  if (reader.ok()) {
    std::vector<uint64_t> forgotten;
    std::vector<ToldParams> told;
    std::vector<uint64_t> names;
    reader(forgotten, told, names);
    for (const uint64_t number : forgotten) known_.erase(number);
    for (ToldParams& one : told) {
      known_.insert_or_assign(one.number, std::make_shared<const SamplingParams>(std::move(one.params)));
    }
    for (const uint64_t name : names) {
      if (!reader.ok()) break;
      NewSequence& added = plan.added.emplace_back();
      reader(added);
      const auto place = known_.find(name);
      if (place == known_.end()) {
        reader.fail("names parameters that nobody told");
      } else {
        added.params = place->second;
      }
    }
    reader(plan);
  }
  QUIRE_RETURN_IF_ERROR(reader.finish());
  QUIRE_RETURN_IF_ERROR(check_parts(plan));
  return plan;
}

std::string encode(const StepPlan& plan) {
  return PlanWriter().write(plan);
}
Result<StepPlan> decode_plan(std::string_view message) {
  return PlanReader().read(message);
}

std::string encode(const Result<ExecutedStep>& step) {
  Writer writer(Kind::kStep);
  writer(step.status());
  if (step.ok()) writer(*step);
  return writer.take();
}

Result<Result<ExecutedStep>> decode_step(std::string_view message) {
  Reader reader(message, Kind::kStep);
  Status status;
  ExecutedStep step;
  if (reader.ok()) reader(status);
  if (reader.ok() && status.ok()) reader(step);
  QUIRE_RETURN_IF_ERROR(reader.finish());
  using Step = Result<ExecutedStep>;
  return status.ok() ? Result<Step>(Step(std::move(step))) : Result<Step>(Step(std::move(status)));
}

std::string encode(const MaskQuestion& question) {
  return encode_fields(Kind::kQuestion, question);
}
std::string encode(const MaskAnswer& answer) {
  return encode_fields(Kind::kAnswer, answer);
}
std::string encode(const OffloadOrders& orders) {
  return encode_fields(Kind::kOrders, orders);
}
std::string encode(const OffloadReports& reports) {
  return encode_fields(Kind::kReports, reports);
}
Result<OffloadOrders> decode_orders(std::string_view message) {
  return decode_fields<OffloadOrders>(Kind::kOrders, message);
}
Result<OffloadReports> decode_reports(std::string_view message) {
  return decode_fields<OffloadReports>(Kind::kReports, message);
}
Result<MaskQuestion> decode_question(std::string_view message) {
  return decode_fields<MaskQuestion>(Kind::kQuestion, message);
}
Result<MaskAnswer> decode_answer(std::string_view message) {
  return decode_fields<MaskAnswer>(Kind::kAnswer, message);
}

}  // namespace quire::runner
