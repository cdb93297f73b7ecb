#include "runner/plan_codec.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace quire::runner {
namespace {

static_assert(std::endian::native == std::endian::little, "the messages are little-endian");

constexpr char kLetters[] = {'Q', 'U', 'I', 'R'};
enum class Kind : uint16_t { kPlan = 1, kStep = 2, kQuestion = 3, kAnswer = 4 };

template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// The last of an enum's values, which begin with 0.
template <typename T>
constexpr T kLast = T();
template <>
constexpr EarlyStopping kLast<EarlyStopping> = EarlyStopping::kNever;
template <>
constexpr OutputKind kLast<OutputKind> = OutputKind::kHiddenState;
template <>
constexpr StructuredOutput::Kind kLast<StructuredOutput::Kind> = StructuredOutput::Kind::kStructuralTag;
template <>
constexpr StatusCode kLast<StatusCode> = StatusCode::kInternal;

class Writer {
 public:
  template <typename T>
  using Of = const T&;

  explicit Writer(Kind kind) {
    out_.append(kLetters, sizeof(kLetters));
    write(kPlanCodecVersion);
    write(static_cast<uint16_t>(kind));
  }
  std::string take() { return std::move(out_); }

  template <typename... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }

  void count(size_t size) {
    QUIRE_CHECK(size <= UINT32_MAX);
    write(static_cast<uint32_t>(size));
  }

 private:
  template <Number T>
  void write(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void write(bool value) { out_.push_back(value ? 1 : 0); }
  template <typename T>
  requires std::is_enum_v<T>
  void write(T value) { out_.push_back(static_cast<char>(value)); }
  void write(const std::string& text) {
    count(text.size());
    out_.append(text);
  }
  void write(const TokenSet& set) {
    count(set.size());
    out_.append(reinterpret_cast<const char*>(set.ids().data()), set.size() * sizeof(TokenId));
  }
  template <typename T>
  void write(const std::vector<T>& list) {
    count(list.size());
    if constexpr (Number<T>) {
      out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    } else {
      for (const T& one : list) write(one);
    }
  }
  template <typename T>
  void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <typename A, typename B>
  void write(const std::pair<A, B>& pair) {
    write(pair.first);
    write(pair.second);
  }
  void write(const std::shared_ptr<const DryBreakers>& breakers) {
    write(breakers != nullptr);
    if (breakers == nullptr) return;
    write(breakers->words());
    write(breakers->longer());
  }
  void write(const Status& status) {
    write(status.code());
    if (status.ok()) return;
    write(status.message());
    write(status.param());
  }
  template <typename T>
  requires(std::is_class_v<T>) void write(const T& value) { fields(*this, value); }

  std::string out_;
};

// After the first thing that cannot be read everything reads as nothing.
class Reader {
 public:
  template <typename T>
  using Of = T&;

  Reader(std::string_view message, Kind kind) : left_(message), size_(message.size()) {
    char letters[sizeof(kLetters)] = {};
    for (char& letter : letters) read(letter);
    if (ok() && !std::ranges::equal(letters, kLetters)) fail("does not begin as a message does");
    uint16_t version = 0;
    uint16_t found = 0;
    (*this)(version, found);
    if (ok() && version != kPlanCodecVersion) {
      error_ = invalid_argument(
          "a message of version {} came to a quire that speaks version {}: run the same program on both sides", version,
          kPlanCodecVersion);
    } else if (ok() && found != static_cast<uint16_t>(kind)) {
      error_ = data_loss("a message of kind {} came where kind {} was expected", found, static_cast<int>(kind));
    }
  }

  bool ok() const { return error_.ok(); }
  void fail(std::string_view what) {
    if (ok()) error_ = data_loss("a message of {} bytes {} at byte {}", size_, what, size_ - left_.size());
    left_ = {};
  }
  // When all is read.
  Status finish() {
    if (!left_.empty()) fail("goes on behind its end");
    return error_;
  }

  template <typename... T>
  void operator()(T&... values) {
    (read(values), ...);
  }

  // Of things that take at least `least` bytes each.
  size_t count(size_t least) {
    uint32_t size = 0;
    read(size);
    if (size > left_.size() / least) {
      fail("has a list that is longer than itself");
      return 0;
    }
    return size;
  }

 private:
  template <Number T>
  void read(T& value) {
    if (left_.size() < sizeof(T)) return fail("ends too early");
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
  }
  void read(bool& value) {
    uint8_t byte = 0;
    read(byte);
    if (byte > 1) fail("has a flag that is neither 0 nor 1");
    value = byte == 1;
  }
  template <typename T>
  requires std::is_enum_v<T>
  void read(T& value) {
    uint8_t byte = 0;
    read(byte);
    if (byte > static_cast<uint8_t>(kLast<T>)) return fail("has a choice that does not exist");
    value = static_cast<T>(byte);
  }
  void read(std::string& text) {
    const size_t size = count(1);
    text.assign(left_.substr(0, size));
    left_.remove_prefix(size);
  }
  void read(TokenSet& set) {
    std::vector<TokenId> ids;
    read(ids);
    set = TokenSet(std::move(ids));
  }
  template <typename T>
  void read(std::vector<T>& list) {
    if constexpr (Number<T>) {
      list.resize(count(sizeof(T)));
      if (list.empty()) return;
      std::memcpy(list.data(), left_.data(), list.size() * sizeof(T));
      left_.remove_prefix(list.size() * sizeof(T));
    } else {
      const size_t size = count(1);
      list.clear();
      // As many as could be there; what is larger in memory than here grows with what is read.
      list.reserve(std::min(size, left_.size() / sizeof(T) + 1));
      for (size_t i = 0; i < size && ok(); ++i) read(list.emplace_back());
    }
  }
  template <typename T>
  void read(std::optional<T>& value) {
    bool has = false;
    read(has);
    value.reset();
    if (has) read(value.emplace());
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& pair) {
    read(pair.first);
    read(pair.second);
  }
  void read(std::shared_ptr<const DryBreakers>& breakers) {
    bool has = false;
    read(has);
    if (!has) return;
    std::vector<uint64_t> words;
    std::vector<std::vector<TokenId>> longer;
    (*this)(words, longer);
    if (ok()) breakers = std::make_shared<const DryBreakers>(std::move(words), longer);
  }
  void read(Status& status) {
    StatusCode code = StatusCode::kOk;
    read(code);
    if (code == StatusCode::kOk) return;
    std::string message;
    std::string param;
    (*this)(message, param);
    status = Status(code, std::move(message)).with_param(std::move(param));
  }
  template <typename T>
  requires(std::is_class_v<T>) void read(T& value) { fields(*this, value); }

  std::string_view left_;
  size_t size_;
  Status error_;
};

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
  all(x.id, x.prompt, x.output, x.seed, x.eos_ids, x.constraint, x.adapter, x.output_kind, x.media);
}
template <typename A>
void fields(A& all, typename A::template Of<ScheduledSequence> x) {
  all(x.id, x.num_computed_tokens, x.num_new_tokens, x.samples, x.num_candidates, x.num_draft_tokens);
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
void fields(A& all, typename A::template Of<BeamMove> x) {
  all(x.id, x.source, x.token);
}
template <typename A>
void fields(A& all, typename A::template Of<TableChange> x) {
  all(x.id, x.group, x.num_blocks, x.first, x.count);
}
// Behind `added` and its parameters.
template <typename A>
void fields(A& all, typename A::template Of<StepPlan> x) {
  all(x.step, x.moves, x.retired, x.swap_out, x.swap_in, x.copies, x.table_changes, x.table_blocks, x.scheduled,
      x.draft_tokens, x.num_tokens);
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
  all(x.id, x.tokens, x.candidates, x.logprobs, x.prompt_logprobs, x.error);
}
template <typename A>
void fields(A& all, typename A::template Of<StepTimings> x) {
  all(x.prepare, x.swap, x.forward, x.sample, x.computed, x.wait, x.replayed, x.ahead, x.host_rows, x.draw_bytes,
      x.collect, x.forms);
}
template <typename A>
void fields(A& all, typename A::template Of<ExecutedStep> x) {
  all(x.result.step, x.result.sequences, x.timings);
}
template <typename A>
void fields(A& all, typename A::template Of<MaskQuestion> x) {
  all(x.constraint, x.answer, x.forget, x.tokens, x.num_words);
}
template <typename A>
void fields(A& all, typename A::template Of<MaskAnswer> x) {
  all(x.found, x.num_accepted, x.restricts, x.mask, x.trouble);
}

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
    drafts += run.num_draft_tokens;
  }
  if (drafts == static_cast<int64_t>(plan.draft_tokens.size())) return {};
  return data_loss("a plan has {} draft tokens for runs of {}", plan.draft_tokens.size(), drafts);
}

template <typename T>
std::string encode_fields(Kind kind, const T& value) {
  Writer writer(kind);
  writer(value);
  return writer.take();
}

template <typename T>
Result<T> decode_fields(Kind kind, std::string_view message) {
  Reader reader(message, kind);
  T value;
  if (reader.ok()) reader(value);
  QUIRE_RETURN_IF_ERROR(reader.finish());
  return value;
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
Result<MaskQuestion> decode_question(std::string_view message) {
  return decode_fields<MaskQuestion>(Kind::kQuestion, message);
}
Result<MaskAnswer> decode_answer(std::string_view message) {
  return decode_fields<MaskAnswer>(Kind::kAnswer, message);
}

}  // namespace quire::runner
