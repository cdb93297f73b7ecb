// The one place that knows xgrammar: vocabularies, compilation and matching behind our own interfaces. It gets EBNF and
// structural tags made of EBNF; how it reads regular expressions is never used, and how it reads schemas only where a
// format of tool calls writes values otherwise than as JSON. Its exceptions and its warnings end here: a warning says
// that a part of what was asked for would be ignored, so it is an error.

#include <algorithm>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include "base/check.h"
#include "base/log.h"
#include "grammar/answer_reading.h"
#include "grammar/compiler.h"
#include "grammar/regex.h"
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

struct GrammarVocabulary::Impl {
  xgrammar::TokenizerInfo info{xgrammar::NullObj{}};
  int64_t vocab_size = 0;
  std::vector<TokenId> end_ids;
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

class GrammarState final : public TokenConstraint::State {
 public:
  GrammarState(std::shared_ptr<const GrammarVocabulary> vocabulary, xgrammar::GrammarMatcher matcher)
      : vocabulary_(std::move(vocabulary)), matcher_(std::move(matcher)) {}

  std::unique_ptr<State> clone() const override { return std::make_unique<GrammarState>(vocabulary_, matcher_.Fork()); }

  bool allowed(std::span<uint32_t> mask) override {
    QUIRE_CHECK(mask.size() == (static_cast<size_t>(vocabulary_->vocab_size()) + kWordBits - 1) / kWordBits);
    if (matcher_.IsTerminated()) {
      only_end(mask);
      return true;
    }
    int64_t shape = static_cast<int64_t>(mask.size());
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    try {
      if (!matcher_.FillNextTokenBitmask(&tensor)) return false;
    } catch (const std::exception& error) {
      log_error("a grammar failed in the middle of an answer: {}", error.what());
      std::ranges::fill(mask, 0U);  // no token is left, and the answer ends with an error
    }
    const size_t rest = static_cast<size_t>(vocabulary_->vocab_size()) % kWordBits;
    if (rest != 0) mask.back() &= (uint32_t{1} << rest) - 1;
    return true;
  }

  bool accept(TokenId token) override {
    if (matcher_.IsTerminated()) return std::ranges::count(vocabulary_->end_ids(), token) > 0;
    try {
      return matcher_.AcceptToken(token);
    } catch (const std::exception& error) {
      log_error("a grammar failed in the middle of an answer: {}", error.what());
      return false;
    }
  }

 private:
  void only_end(std::span<uint32_t> mask) const {
    std::ranges::fill(mask, 0U);
    for (const TokenId id : vocabulary_->end_ids()) {
      const auto bit = static_cast<size_t>(id);
      mask[bit / kWordBits] |= uint32_t{1} << (bit % kWordBits);
    }
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  xgrammar::GrammarMatcher matcher_;
};

// What a form becomes before it is compiled, and how its finished texts are checked.
struct Translation {
  std::string ebnf;                               // from its rule "root"; or
  std::string structural_tag;                     // in xgrammar's form
  std::function<Status(std::string_view)> check;  // none: every text passes
  bool whole_only = false;
};

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary, xgrammar::CompiledGrammar grammar,
                    Translation translation)
      : vocabulary_(std::move(vocabulary)),
        grammar_(std::move(grammar)),
        check_(std::move(translation.check)),
        whole_only_(translation.whole_only) {}

  std::unique_ptr<State> start() const override {
    return std::make_unique<GrammarState>(vocabulary_, xgrammar::GrammarMatcher(grammar_, vocabulary_->end_ids()));
  }

  Status check(std::string_view text) const override { return check_ ? check_(text) : Status(); }
  bool whole_only() const override { return whole_only_; }

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  xgrammar::CompiledGrammar grammar_;
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

Result<Translation> translate(const StructuredOutput& form, const GrammarLimits& limits) {
  switch (form.kind) {
    case StructuredOutput::Kind::kJsonObject:
      return translate_schema(R"({"type":"object"})", form.any_whitespace, limits);
    case StructuredOutput::Kind::kJsonSchema:
      return translate_schema(form.text, form.any_whitespace, limits);
    case StructuredOutput::Kind::kRegex:
      return translate_regex(form.text, limits);
    case StructuredOutput::Kind::kChoice:
      return translate_choices(form.choices);
    case StructuredOutput::Kind::kGrammar:
      return Translation{.ebnf = form.text};
    case StructuredOutput::Kind::kStructuralTag: {
      QUIRE_ASSIGN_OR_RETURN(
          std::string tag,
          plain_structural_tag(form.text, {.any_whitespace = form.any_whitespace, .styles = form.special_tokens},
                               limits));
      return Translation{.structural_tag = std::move(tag)};
    }
  }
  return internal_error("unknown kind of structured output");
}

// A schema or grammar that contradicts itself allows nothing from the start.
bool allows_something(const TokenConstraint& constraint, const GrammarVocabulary& vocabulary) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.vocab_size()) + kWordBits - 1) / kWordBits);
  return !constraint.start()->allowed(mask) || std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

}  // namespace

Result<CompiledConstraint> compile_constraint(const StructuredOutput& form, const GrammarLimits& limits,
                                              std::shared_ptr<const GrammarVocabulary> vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(Translation translation, translate(form, limits));
  std::string warnings;
  xgrammar::warnings = &warnings;
  struct Unset {
    ~Unset() { xgrammar::warnings = nullptr; }
  } unset;
  try {
    xgrammar::GrammarCompiler compiler(vocabulary->impl().info, /*max_threads=*/1, /*cache_enabled=*/false);
    xgrammar::CompiledGrammar grammar = translation.structural_tag.empty()
                                            ? compiler.CompileGrammar(translation.ebnf)
                                            : compiler.CompileStructuralTag(translation.structural_tag);
    if (!warnings.empty()) return invalid_argument("{}", warnings);
    const size_t bytes = grammar.MemorySizeBytes();
    auto constraint = std::make_shared<GrammarConstraint>(vocabulary, std::move(grammar), std::move(translation));
    if (!allows_something(*constraint, *vocabulary)) return invalid_argument("nothing satisfies it");
    return CompiledConstraint{std::move(constraint), bytes};
  } catch (const std::bad_alloc&) {
    return resource_exhausted("there is not enough memory to compile it");
  } catch (const std::exception& error) {
    return invalid_argument("{}", error.what());
  }
}

}  // namespace quire::grammar
