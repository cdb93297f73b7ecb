// The one place that knows xgrammar: vocabularies, compilation and matching behind our own interfaces. It gets EBNF and
// structural tags made of EBNF; how it reads regular expressions is never used, and how it reads schemas only where a
// format of tool calls writes values otherwise than as JSON. Its exceptions and its warnings end here: a warning says
// that a part of what was asked for would be ignored, so it is an error.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include "base/check.h"
#include "base/leavable_thread.h"
#include "base/log.h"
#include "grammar/answer_reading.h"
#include "grammar/compiler.h"
#include "grammar/effort.h"
#include "grammar/mask_cache.h"
#include "grammar/open_character.h"
#include "grammar/recogniser.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/run_counts.h"
#include "grammar/schema.h"
#include "grammar/structural_tag.h"
#include "text/utf8.h"

// xgrammar's log, which it leaves to whoever links it (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {
namespace {

// What it warned of while this thread compiled.
thread_local std::string* warnings = nullptr;

}  // namespace

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kInfo = 0;
  if (warnings == nullptr || level == kInfo) return;
  if (!warnings->empty()) *warnings += "; ";
  *warnings += message;
}

}  // namespace xgrammar

namespace quire::grammar {
namespace json = boost::json;

struct GrammarVocabulary::Impl {
  xgrammar::TokenizerInfo info{xgrammar::NullObj{}};
  int64_t vocab_size = 0;
  std::vector<TokenId> end_ids;
  int64_t longest_token = 0;  // bytes
  mutable RunTables run_tables;
  mutable MaskCache masks;
  mutable std::array<std::once_flag, OpenCharacter::kNumPlaces> open_once;
  mutable std::array<ContinuingTokens, OpenCharacter::kNumPlaces> open_tokens;
  mutable std::atomic<uint64_t> num_constraints = 0;
  const std::vector<std::string>& tokens() const { return info.GetDecodedVocab(); }
  const std::string& token(TokenId id) const { return tokens()[static_cast<size_t>(id)]; }
  // REQUIRES: a character is open.
  const ContinuingTokens& continuing(const OpenCharacter& open) const {
    const size_t place = open.place();
    std::call_once(open_once[place], [&] { open_tokens[place] = continuing_tokens(open, tokens()); });
    return open_tokens[place];
  }
};

GrammarVocabulary::GrammarVocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> end_ids,
                                     bool special_tokens)
    : impl_(std::make_unique<Impl>()) {
  std::erase_if(end_ids, [vocab_size](TokenId id) { return id < 0 || id >= vocab_size; });
  std::vector<std::string> tokens(static_cast<size_t>(vocab_size));
  const int64_t known = std::min(vocab_size, tokenizer.vocab_size());
  for (TokenId id = 0; id < known; ++id) {
    std::string bytes = tokenizer.token_bytes(id);
    if (tokenizer.is_special(id) && !(special_tokens && is_mark(bytes))) continue;
    impl_->longest_token = std::max(impl_->longest_token, static_cast<int64_t>(bytes.size()));
    tokens[static_cast<size_t>(id)] = std::move(bytes);
  }
  impl_->info = xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(vocab_size), end_ids);
  impl_->vocab_size = vocab_size;
  impl_->end_ids = std::move(end_ids);
}

GrammarVocabulary::~GrammarVocabulary() = default;

int64_t GrammarVocabulary::vocab_size() const {
  return impl_->vocab_size;
}
const std::vector<TokenId>& GrammarVocabulary::end_ids() const {
  return impl_->end_ids;
}

namespace {

constexpr size_t kWordBits = 32;

// What the grammar of the masks leaves uncounted, counted.
class CountedRuns {
 public:
  CountedRuns(const GrammarVocabulary& vocabulary, std::shared_ptr<const Rules> rules)
      : vocabulary_(vocabulary.impl()), rules_(std::move(rules)) {
    for (const Rules::Node& node : rules_->nodes()) {
      if (node.loose) tables_.emplace(&node, vocabulary_.run_tables.table(vocabulary_.tokens(), node.set));
    }
  }

  // Takes from the mask what breaks a count.
  void restrict(const Recogniser& place, std::span<uint32_t> mask) const {
    const Recogniser::Counts counts = place.counts();
    const int64_t begun = place.in_character() ? 1 : 0;
    const auto most = [begun](const Recogniser::Count& run) {
      return run.most < 0 ? -1 : std::max<int64_t>(run.most - begun, 0);
    };
    const auto allows_all = [&](const Recogniser::Count& run) {
      return table(run).allows_all(run.least - begun, most(run));
    };
    if (counts.runs.empty() || std::ranges::any_of(counts.runs, allows_all)) return;
    std::vector<uint32_t> refused;  // by all of them
    std::vector<uint32_t> too;
    const bool outside = begun == 0 && (counts.alone || !counts.clear);
    for (const Recogniser::Count& run : counts.runs) {
      std::vector<uint32_t>& bits = refused.empty() ? refused : too;
      bits.assign(mask.size(), 0);
      table(run).mark(run.least - begun, most(run), outside, bits);
      if (&bits == &refused) continue;
      for (size_t i = 0; i < refused.size(); ++i) refused[i] &= too[i];
    }
    if (!counts.clear) pardon(place, mask, refused);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= ~refused[i];
  }

 private:
  const RunTable& table(const Recogniser::Count& run) const { return *tables_.at(&rules_->node(run.node)); }

  // Where a text may be in a run or, with the same characters, somewhere else, what the run refuses may still follow.
  // Token by token, in order, so that what tokens have in common is read once.
  void pardon(const Recogniser& place, std::span<const uint32_t> mask, std::span<uint32_t> refused) const {
    std::vector<TokenId> tokens;
    for (size_t word = 0; word < mask.size(); ++word) {
      for (uint32_t bits = mask[word] & refused[word]; bits != 0; bits &= bits - 1) {
        tokens.push_back(static_cast<TokenId>(word * kWordBits + static_cast<size_t>(std::countr_zero(bits))));
      }
    }
    std::ranges::sort(tokens, {}, [this](TokenId id) -> const std::string& { return vocabulary_.token(id); });
    std::vector<Recogniser> read{place};  // as far as `text`
    std::string text;
    std::string dead;  // nothing begins so
    for (const TokenId id : tokens) {
      const std::string& token = vocabulary_.token(id);
      if (!dead.empty() && token.starts_with(dead)) continue;
      const auto common = static_cast<size_t>(std::ranges::mismatch(token, text).in1 - token.begin());
      read.erase(read.begin() + static_cast<std::ptrdiff_t>(common) + 1, read.end());
      text.resize(common);
      while (text.size() < token.size()) {
        Recogniser next = read.back();
        if (!next.accept(std::string_view(token).substr(text.size(), 1))) break;
        text += token[text.size()];
        read.push_back(std::move(next));
      }
      if (text.size() == token.size()) {
        refused[static_cast<size_t>(id) / kWordBits] &= ~(uint32_t{1} << (static_cast<size_t>(id) % kWordBits));
      } else {
        dead = token.substr(0, text.size() + 1);
      }
    }
  }

  const GrammarVocabulary::Impl& vocabulary_;
  std::shared_ptr<const Rules> rules_;
  std::unordered_map<const Rules::Node*, std::shared_ptr<const RunTable>> tables_;
};

// What one output was compiled to.
struct Compiled {
  Compiled(std::shared_ptr<const GrammarVocabulary> of, double kept_seconds)
      : vocabulary(std::move(of)), number(++vocabulary->impl().num_constraints), kept_mask_seconds(kept_seconds) {}

  std::shared_ptr<const GrammarVocabulary> vocabulary;
  xgrammar::CompiledGrammar grammar{xgrammar::NullObj{}};
  std::shared_ptr<const Rules> rules;       // null: they are of a kind that only the grammar knows
  std::unique_ptr<const CountedRuns> runs;  // null: the grammar counts everything
  uint64_t number;                          // no other constraint of the vocabulary has it
  double kept_mask_seconds;
  bool counts_tokens = false;                 // what may follow is not told by the text alone: no mask is kept
  bool may_hang = false;                      // nothing bounds what one token takes
  mutable std::atomic<bool> slow = false;     // a mask took long: they are kept from now on
  mutable std::atomic<bool> overdue = false;  // one took so long that it was left to itself
};

class GrammarState final : public TokenConstraint::State {
 public:
  explicit GrammarState(std::shared_ptr<const Compiled> compiled)
      : compiled_(std::move(compiled)), matcher_(compiled_->grammar, compiled_->vocabulary->end_ids()) {
    // To keep masks by is not worth following many ways.
    constexpr int64_t kLittleWork = 200'000;
    if (counts()) {
      place_.emplace(compiled_->rules);
    } else if (compiled_->rules != nullptr && compiled_->slow && !compiled_->counts_tokens) {
      place_.emplace(compiled_->rules, kLittleWork);
    }
  }
  GrammarState(const GrammarState& other)
      : compiled_(other.compiled_),
        matcher_(other.overdue_ ? xgrammar::GrammarMatcher(xgrammar::NullObj{}) : other.matcher_.Fork()),
        place_(other.place_),
        open_(other.open_),
        lost_(other.lost_),
        overdue_(other.overdue_),
        effort_(other.effort_) {}

  std::unique_ptr<State> clone() const override { return std::make_unique<GrammarState>(*this); }

  bool allowed(std::span<uint32_t> mask) override {
    QUIRE_CHECK(mask.size() == (static_cast<size_t>(vocab_size()) + kWordBits - 1) / kWordBits);
    if (!trouble().ok()) {
      std::ranges::fill(mask, 0U);  // no token is left, and the answer ends with an error
      return true;
    }
    const ThreadTimeSpan span = effort_.span();
    if (matcher_.IsTerminated()) {
      std::ranges::fill(mask, 0U);
      set_end(mask, true);
      return true;
    }
    MaskCache& masks = compiled_->vocabulary->impl().masks;
    const bool keeps = place_ && compiled_->slow && !compiled_->counts_tokens;
    const std::string key = keeps ? mask_key() : std::string();
    if (!key.empty() && masks.find(key, mask)) return true;
    const double left = effort_.left();
    const double begin = thread_seconds();
    const bool restricts = make_mask(mask);
    if (!restricts) return false;
    const double elsewhere = left - effort_.left();
    if (thread_seconds() - begin + elsewhere < compiled_->kept_mask_seconds) return true;
    compiled_->slow = true;
    const bool any = std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
    if (!key.empty() && any) masks.keep(key, mask);
    return true;
  }

  bool accept(TokenId token) override {
    const ThreadTimeSpan span = effort_.span();
    effort_.add_token();
    if (overdue_) return false;
    const bool is_end = std::ranges::count(end_ids(), token) > 0;
    if (matcher_.IsTerminated()) return is_end;
    std::optional<Recogniser> next;
    if (counts() && is_end && !place_->complete()) return false;
    if (place_ && !is_end) {
      if (token < 0 || token >= vocab_size()) return false;
      next = place_;
      const bool accepted = next->accept(compiled_->vocabulary->impl().token(token));
      if (!accepted && counts()) {
        lost_ = next->lost();
        return false;
      }
      if (!accepted) next.reset();  // masks are not kept from here on
    }
    if (!matcher_accepts(token) && (is_end || !runs_over(token))) return false;
    if (!is_end) {
      place_ = std::move(next);
      open_.push(compiled_->vocabulary->impl().token(token));
    }
    return true;
  }

  Status trouble() const override {
    if (!lost_ && !overdue_ && !compiled_->overdue && !effort_.spent()) return {};
    return invalid_argument("The structured output can be read in too many ways at once: following it takes too long.")
        .with_param("structured_outputs");
  }

 private:
  int64_t vocab_size() const { return compiled_->vocabulary->vocab_size(); }
  const std::vector<TokenId>& end_ids() const { return compiled_->vocabulary->end_ids(); }
  // Are there counts that the grammar does not know, but `place_`?
  bool counts() const { return compiled_->runs != nullptr; }

  std::string mask_key() const {
    return std::to_string(compiled_->number) + ' ' + place_->signature(compiled_->vocabulary->impl().longest_token);
  }

  static bool accept_by(xgrammar::GrammarMatcher& matcher, TokenId token) {
    try {
      return matcher.AcceptToken(token);
    } catch (const std::exception& error) {
      log_error("a grammar failed in the middle of an answer: {}", error.what());
      return false;
    }
  }

  // False: everything is allowed.
  static bool fill_by(xgrammar::GrammarMatcher& matcher, std::span<uint32_t> mask) {
    int64_t shape = std::ssize(mask);
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    try {
      return matcher.FillNextTokenBitmask(&tensor);
    } catch (const std::exception& error) {
      log_error("a grammar failed in the middle of an answer: {}", error.what());
      std::ranges::fill(mask, 0U);  // no token is left, and the answer ends with an error
      return true;
    }
  }

  // Does what may take any time on a thread that can be left to it. `work` owns all else that it touches. False: the
  // thread was left.
  bool do_elsewhere(std::function<void(xgrammar::GrammarMatcher&)> work) {
    constexpr int kMostLeft = 4;
    thread_local LeavableThread thread;
    if (LeavableThread::num_left() < kMostLeft) {
      // What is a little too slow ends its own answer, and nobody else's.
      const double most = std::max(effort_.left(), Effort::kAtOnce);
      const auto took = thread.run(
          [work = std::move(work), matcher = matcher_, compiled = compiled_]() mutable { work(matcher); }, most);
      if (took) {
        effort_.add_seconds(*took);
        return true;
      }
      compiled_->overdue = true;
    }
    overdue_ = true;
    matcher_ = xgrammar::GrammarMatcher(xgrammar::NullObj{});
    return false;
  }

  bool matcher_accepts(TokenId token) {
    if (!compiled_->may_hang) return accept_by(matcher_, token);
    const auto accepted = std::make_shared<bool>(false);
    return do_elsewhere(
               [accepted, token](xgrammar::GrammarMatcher& matcher) { *accepted = accept_by(matcher, token); }) &&
           *accepted;
  }

  // The matcher's mask; false: it allows everything. Nothing is allowed where it failed or was left.
  bool fill(std::span<uint32_t> mask) {
    if (!compiled_->may_hang) return fill_by(matcher_, mask);
    struct Filled {
      std::vector<uint32_t> mask;
      bool restricts = false;
    };
    const auto filled = std::make_shared<Filled>(Filled{std::vector<uint32_t>(mask.size())});
    const auto work = [filled](xgrammar::GrammarMatcher& matcher) {
      filled->restricts = fill_by(matcher, filled->mask);
    };
    if (!do_elsewhere(work)) {
      std::ranges::fill(mask, 0U);
      return true;
    }
    std::ranges::copy(filled->mask, mask.begin());
    return filled->restricts;
  }

  // Whether the token ends a character that was begun where the matcher wants no more of it: a budget of reasoning may
  // be spent within one. Such a token is the text's, and not the matcher's.
  bool runs_over(TokenId token) {
    if (!open_.is_open() || overdue_ || token < 0 || token >= vocab_size()) return false;
    const ContinuingTokens& tokens = compiled_->vocabulary->impl().continuing(open_);
    const auto bit = static_cast<size_t>(token);
    if ((tokens.within[bit / kWordBits] >> (bit % kWordBits) & 1) == 0) return false;
    std::vector<uint32_t> mask(tokens.within.size());
    return fill(mask) && !overdue_ && !intersects(mask, tokens.continuing);
  }

  static bool intersects(std::span<const uint32_t> a, std::span<const uint32_t> b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if ((a[i] & b[i]) != 0) return true;
    }
    return false;
  }

  // Within a character only what goes on with it: free text around marks allows any token there, and accepts these.
  void keep_character(std::span<uint32_t> mask) const {
    const ContinuingTokens& tokens = compiled_->vocabulary->impl().continuing(open_);
    if (intersects(mask, tokens.continuing)) {
      for (size_t i = 0; i < mask.size(); ++i) mask[i] &= tokens.continuing[i];
    } else if (std::ranges::any_of(tokens.within, [](uint32_t word) { return word != 0; })) {
      std::ranges::copy(tokens.within, mask.begin());  // as runs_over() has it
    }
  }

  // As allowed().
  bool make_mask(std::span<uint32_t> mask) {
    if (!fill(mask)) {
      if (!counts() && !open_.is_open()) return false;
      std::ranges::fill(mask, ~0U);
    }
    if (overdue_) return true;
    if (open_.is_open()) keep_character(mask);
    const size_t rest = static_cast<size_t>(vocab_size()) % kWordBits;
    if (rest != 0) mask.back() &= (uint32_t{1} << rest) - 1;
    if (counts()) {
      compiled_->runs->restrict(*place_, mask);
      if (!place_->complete()) set_end(mask, false);
    }
    return true;
  }

  void set_end(std::span<uint32_t> mask, bool may_end) const {
    for (const TokenId id : end_ids()) {
      const auto bit = static_cast<size_t>(id);
      const uint32_t in_word = uint32_t{1} << (bit % kWordBits);
      mask[bit / kWordBits] = may_end ? mask[bit / kWordBits] | in_word : mask[bit / kWordBits] & ~in_word;
    }
  }

  std::shared_ptr<const Compiled> compiled_;
  xgrammar::GrammarMatcher matcher_;
  std::optional<Recogniser> place_;  // none: the rules are not known, or cannot be followed
  OpenCharacter open_;               // that the text ends within
  bool lost_ = false;                // it cannot be followed any more
  bool overdue_ = false;             // the matcher was left to what it does, and is another thread's
  Effort effort_;
};

// What a output becomes before it is compiled, and how its finished texts are checked.
struct Translation {
  std::string ebnf;                               // from its rule "root"; or
  std::string structural_tag;                     // in xgrammar's form
  std::function<Status(std::string_view)> check;  // none: every text passes
  bool whole_only = false;
};

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const Compiled> compiled, Translation translation)
      : compiled_(std::move(compiled)), check_(std::move(translation.check)), whole_only_(translation.whole_only) {}

  std::unique_ptr<State> start() const override { return std::make_unique<GrammarState>(compiled_); }

  Status check(std::string_view text) const override { return check_ ? check_(text) : Status(); }
  bool whole_only() const override { return whole_only_; }

 private:
  std::shared_ptr<const Compiled> compiled_;
  std::function<Status(std::string_view)> check_;
  bool whole_only_;
};

Result<Translation> translate_schema(const std::string& text, bool any_whitespace, const GrammarLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const Schema> schema, Schema::parse(text, limits));
  QUIRE_ASSIGN_OR_RETURN(std::string ebnf, schema->ebnf(any_whitespace));
  return Translation{.ebnf = std::move(ebnf),
                     .check = [schema](std::string_view answer) { return schema->validate_text(answer); },
                     .whole_only = true};
}

Result<Translation> translate_regex(const std::string& pattern, const GrammarLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(Regex parsed, Regex::parse(pattern, limits));
  const auto regex = std::make_shared<const Regex>(std::move(parsed));
  return Translation{.ebnf = "root ::= " + regex->ebnf(Spelling::kText), .check = [regex](std::string_view answer) {
                       return regex->matches(answer) ? Status() : data_loss("the answer does not match the expression");
                     }};
}

Result<Translation> translate_choices(const std::vector<std::string>& choices) {
  std::string ebnf = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!text::is_valid_utf8(choices[i])) return invalid_argument("a choice is no UTF-8");
    if (i > 0) ebnf += " | ";
    ebnf += ebnf_of(choices[i], Spelling::kText);
  }
  return Translation{.ebnf = std::move(ebnf), .check = [choices](std::string_view answer) {
                       return std::ranges::find(choices, answer) != choices.end()
                                  ? Status()
                                  : data_loss("the answer is none of the choices");
                     }};
}

Result<Translation> translate(const StructuredOutput& output, const GrammarLimits& limits);

// REQUIRES: checked (check_structured_output), so that it is JSON.
json::value parsed_tag(const std::string& text) {
  json::parse_options options;
  options.max_depth = 1024;
  return json::parse(text, {}, options);
}

Result<Translation> translate_tag(const StructuredOutput& output, const GrammarLimits& limits) {
  Translation translation;
  std::string text = output.text;
  if (output.special_tokens) {  // a tag of ours, about what a client asked for
    json::value tag = parsed_tag(text);
    if (const auto said = take_said(tag.get_object())) {
      QUIRE_ASSIGN_OR_RETURN(const Translation inner, translate(*said, limits));
      translation.whole_only = inner.whole_only;
      if (inner.check) {
        // Line ends that stood behind the reasoning are not of it.
        translation.check = [check = inner.check](std::string_view answer) {
          Status status = check(answer);
          while (!status.ok() && answer.starts_with('\n')) {
            answer.remove_prefix(1);
            status = check(answer);
          }
          return status;
        };
      }
    }
    text = json::serialize(tag);
  }
  QUIRE_ASSIGN_OR_RETURN(translation.structural_tag,
                         plain_structural_tag(text, {.any_whitespace = output.any_whitespace}, limits));
  return translation;
}

Result<Translation> translate(const StructuredOutput& output, const GrammarLimits& limits) {
  switch (output.kind) {
    case StructuredOutput::Kind::kJsonObject:
      return translate_schema(R"({"type":"object"})", output.any_whitespace, limits);
    case StructuredOutput::Kind::kJsonSchema:
      return translate_schema(output.text, output.any_whitespace, limits);
    case StructuredOutput::Kind::kRegex:
      return translate_regex(output.text, limits);
    case StructuredOutput::Kind::kChoice:
      return translate_choices(output.choices);
    case StructuredOutput::Kind::kGrammar:
      return Translation{.ebnf = output.text};
    case StructuredOutput::Kind::kStructuralTag:
      return translate_tag(output, limits);
  }
  return internal_error("unknown kind of structured output");
}

// A schema or grammar that contradicts itself allows nothing from the start.
// A few random tokens: what nothing satisfies, and what would take too long to follow, is found before an engine waits
// for it.
Status try_out(const std::shared_ptr<const Compiled>& compiled) {
  constexpr int kWalks = 2;
  constexpr int kTokens = 24;
  const int64_t vocab_size = compiled->vocabulary->vocab_size();
  std::vector<uint32_t> mask((static_cast<size_t>(vocab_size) + kWordBits - 1) / kWordBits);
  std::minstd_rand random(1);
  for (int walk = 0; walk < kWalks; ++walk) {
    GrammarState state(compiled);
    for (int i = 0; i < kTokens; ++i) {
      if (!state.allowed(mask)) std::ranges::fill(mask, ~0U);
      if (!state.trouble().ok()) {
        return invalid_argument("it can be read in too many ways at once: following it takes too long");
      }
      // The first word from a random one on that allows something, and its lowest token.
      const size_t from = random() % mask.size();
      size_t word = from;
      while (mask[word] == 0 && (word + 1) % mask.size() != from) word = (word + 1) % mask.size();
      if (mask[word] == 0 && i == 0) return invalid_argument("nothing satisfies it");
      const auto token = static_cast<TokenId>(word * kWordBits + static_cast<size_t>(std::countr_zero(mask[word])));
      if (mask[word] == 0 || token >= vocab_size || !state.accept(token)) break;
    }
  }
  return {};
}

// Takes from the translation the counts that the rules have, which come back. Null: the masks have to know everything.
std::shared_ptr<const Rules> loosened(Translation& translation) {
  if (translation.structural_tag.empty()) {
    auto rules = Rules::parse(translation.ebnf);
    if (!rules.ok()) return nullptr;
    translation.ebnf = (*rules)->loose_ebnf();
    return *rules;
  }
  auto tag = rules_of_tag(translation.structural_tag);
  if (!tag.ok()) return nullptr;
  translation.structural_tag = std::move(tag->tag);
  return std::move(tag->rules);
}

Status check_by_rules(const std::shared_ptr<const Rules>& rules, std::string_view answer) {
  Recogniser recogniser(rules);
  if ((recogniser.accept(answer) && recogniser.complete()) || recogniser.lost()) return {};
  return data_loss("the answer does not follow the grammar");
}

// What xgrammar says may cut a character.
Status refused_with(std::string_view message) {
  std::string told;
  text::append_lossy_utf8(message, told);
  return invalid_argument("{}", told);
}

}  // namespace

Result<CompiledConstraint> compile_constraint(const StructuredOutput& output, const GrammarLimits& limits,
                                              std::shared_ptr<const GrammarVocabulary> vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(Translation translation, translate(output, limits));
  auto compiled = std::make_shared<Compiled>(vocabulary, limits.kept_mask_seconds);
  if (const std::shared_ptr<const Rules> rules = loosened(translation); rules != nullptr) {
    compiled->rules = rules;
    if (rules->any_loose()) compiled->runs = std::make_unique<const CountedRuns>(*vocabulary, rules);
    if (output.kind == StructuredOutput::Kind::kGrammar ||
        (output.kind == StructuredOutput::Kind::kStructuralTag && !output.special_tokens)) {
      translation.check = [rules](std::string_view answer) { return check_by_rules(rules, answer); };
    }
  }
  compiled->counts_tokens = translation.structural_tag.find("\"max_tokens\"") != std::string::npos;
  compiled->may_hang =
      compiled->rules == nullptr || output.kind == StructuredOutput::Kind::kGrammar || compiled->rules->counts_parts();
  std::string warnings;
  xgrammar::warnings = &warnings;
  struct Unset {
    ~Unset() { xgrammar::warnings = nullptr; }
  } unset;
  try {
    xgrammar::GrammarCompiler compiler(vocabulary->impl().info, /*max_threads=*/1, /*cache_enabled=*/false);
    compiled->grammar = translation.structural_tag.empty() ? compiler.CompileGrammar(translation.ebnf)
                                                           : compiler.CompileStructuralTag(translation.structural_tag);
    if (!warnings.empty()) return refused_with(warnings);
    size_t bytes = compiled->grammar.MemorySizeBytes();
    if (compiled->rules != nullptr) bytes += compiled->rules->bytes();
    QUIRE_RETURN_IF_ERROR(try_out(compiled));
    return CompiledConstraint{std::make_shared<GrammarConstraint>(std::move(compiled), std::move(translation)), bytes};
  } catch (const std::bad_alloc&) {
    return resource_exhausted("there is not enough memory to compile it");
  } catch (const std::exception& error) {
    return refused_with(error.what());
  }
}

}  // namespace quire::grammar
