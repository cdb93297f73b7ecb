#include "grammar/xgrammar_adapter.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include "base/check.h"
#include "base/log.h"
#include "grammar/answer_reading.h"

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
constexpr int kMostWhitespace = 32;  // in a row, between the tokens of JSON

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

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary, xgrammar::CompiledGrammar grammar)
      : vocabulary_(std::move(vocabulary)), grammar_(std::move(grammar)) {}

  std::unique_ptr<State> start() const override {
    return std::make_unique<GrammarState>(vocabulary_, xgrammar::GrammarMatcher(grammar_, vocabulary_->end_ids()));
  }

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  xgrammar::CompiledGrammar grammar_;
};

// A string as EBNF's terminal. Bytes that are no printable ASCII are written as code points, which the text must be
// made of.
std::string quoted_terminal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string choices_as_ebnf(const std::vector<std::string>& choices) {
  std::string out = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += " | ";
    out += quoted_terminal(choices[i]);
  }
  return out;
}

xgrammar::CompiledGrammar compile(xgrammar::GrammarCompiler& compiler, const StructuredOutput& form) {
  const auto schema = [&](const std::string& text) {
    if (form.any_whitespace) {
      return compiler.CompileJSONSchema(text, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                        /*strict_mode=*/true, kMostWhitespace);
    }
    return compiler.CompileJSONSchema(text, /*any_whitespace=*/false, std::nullopt,
                                      std::pair<std::string, std::string>(", ", ": "), /*strict_mode=*/true);
  };
  switch (form.kind) {
    case StructuredOutput::Kind::kJsonObject:
      return schema(R"({"type":"object","additionalProperties":true})");
    case StructuredOutput::Kind::kJsonSchema:
      return schema(form.text);
    case StructuredOutput::Kind::kRegex:
      return compiler.CompileRegex(form.text);
    case StructuredOutput::Kind::kChoice:
      return compiler.CompileGrammar(choices_as_ebnf(form.choices));
    case StructuredOutput::Kind::kGrammar:
      return compiler.CompileGrammar(form.text);
    case StructuredOutput::Kind::kStructuralTag:
      return compiler.CompileStructuralTag(form.text);
  }
  throw std::runtime_error("unknown kind");
}

// A schema or grammar that contradicts itself allows nothing from the start.
bool allows_something(const TokenConstraint& constraint, const GrammarVocabulary& vocabulary) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.vocab_size()) + kWordBits - 1) / kWordBits);
  return !constraint.start()->allowed(mask) || std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

}  // namespace

Result<CompiledConstraint> compile_constraint(const StructuredOutput& form,
                                              std::shared_ptr<const GrammarVocabulary> vocabulary) {
  std::string warnings;
  xgrammar::warnings = &warnings;
  struct Unset {
    ~Unset() { xgrammar::warnings = nullptr; }
  } unset;
  try {
    xgrammar::GrammarCompiler compiler(vocabulary->impl().info, /*max_threads=*/1, /*cache_enabled=*/false);
    xgrammar::CompiledGrammar grammar = compile(compiler, form);
    if (!warnings.empty()) return invalid_argument("{}", warnings);
    const size_t bytes = grammar.MemorySizeBytes();
    auto constraint = std::make_shared<GrammarConstraint>(vocabulary, std::move(grammar));
    if (!allows_something(*constraint, *vocabulary)) return invalid_argument("nothing satisfies it");
    return CompiledConstraint{std::move(constraint), bytes};
  } catch (const std::bad_alloc&) {
    return resource_exhausted("there is not enough memory to compile it");
  } catch (const std::exception& error) {
    return invalid_argument("{}", error.what());
  }
}

}  // namespace quire::grammar
