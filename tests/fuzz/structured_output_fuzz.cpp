// What an answer may be made to say: schemas, expressions, lists, grammars and structural tags, from a request to the
// masks of a small vocabulary. One byte steers which. An answer that is then drawn at random must be what was asked for
// by the other way of looking at it, too.
#include <fstream>
#include <iterator>
#include <sstream>

#include "grammar/compiler.h"
#include "grammar/random_walk.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace quire;

struct Vocabulary {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<const grammar::GrammarVocabulary> tokens;
};

const Vocabulary& small() {
  static const Vocabulary vocabulary = [] {
    std::ifstream file(QUIRE_TEST_DATA "/tokenizers/small_bpe.json", std::ios::binary);
    const std::string json{std::istreambuf_iterator<char>(file), {}};
    Vocabulary made{text::Tokenizer::from_json(json).value(), nullptr};
    const TokenId end = made.tokenizer->eos_ids().empty() ? 0 : made.tokenizer->eos_ids().front();
    made.tokens = std::make_shared<const grammar::GrammarVocabulary>(*made.tokenizer, made.tokenizer->vocab_size() + 3,
                                                                     std::vector{end}, false);
    return made;
  }();
  return vocabulary;
}

StructuredOutput output_of(uint8_t kind, std::string_view text) {
  using Kind = StructuredOutput::Kind;
  switch (kind % 6) {
    case 0:
      return {.kind = Kind::kJsonSchema, .text = std::string(text)};
    case 1:
      return {.kind = Kind::kRegex, .text = std::string(text)};
    case 2:
      return {.kind = Kind::kGrammar, .text = std::string(text)};
    case 3:
      return {.kind = Kind::kStructuralTag, .text = std::string(text)};
    case 4: {
      StructuredOutput output{.kind = Kind::kChoice};
      std::istringstream lines{std::string(text)};
      for (std::string line; std::getline(lines, line);) output.choices.push_back(line);
      return output;
    }
    default:
      return {.kind = Kind::kJsonSchema, .text = std::string(text), .any_whitespace = false};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)small();  // which the first input need not pay for
  const fuzz::CpuLimit limit;
  // The server gives a compilation a deadline; here what is allowed must be done in time.
  constexpr grammar::GrammarLimits kLimits{.max_bytes = 4096,
                                           .max_regex_bytes = 512,
                                           .max_depth = 24,
                                           .max_schema_nodes = 400,
                                           .max_alternatives = 400,
                                           .max_count = 100,
                                           .max_repetition = 200,
                                           .kept_mask_seconds = 0};
  fuzz::Input input(data, size);
  const uint8_t kind = input.byte();
  const StructuredOutput output = output_of(kind, input.rest());
  const Status checked = grammar::check_structured_output(output, kLimits);
  if (!checked.ok()) {
    fuzz::check_error(checked);
    return 0;
  }
  const auto compiled = grammar::compile_constraint(output, kLimits, small().tokens);
  if (!compiled.ok()) {
    fuzz::check_error(compiled.status());
    return 0;
  }
  const TokenConstraint& constraint = *compiled->constraint;
  const auto answer =
      grammar::random_walk(constraint, *small().tokens, *small().tokenizer, {.seed = size, .max_tokens = 60});
  if (!answer.ok()) {
    fuzz::check_error(answer.status());
  } else if (*answer) {
    const Status said = constraint.check(**answer);
    QUIRE_CHECK_MSG(said.ok(), fmt::format("{:?}: {}", **answer, said.message()));
  }
  return 0;
}
