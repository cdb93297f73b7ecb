#include "tests/grammar/grammar_support.h"

#include <fstream>
#include <iterator>

namespace quire::grammar::testing {

namespace {

Text load(const std::string& name, std::string_view end) {
  Text text;
  auto made = text::Tokenizer::from_json(read_file("tokenizers/" + name));
  EXPECT_TRUE(made.ok()) << made.status().message();
  text.tokenizer = std::move(made).value();
  text.end = text.tokenizer->token_to_id(end).value();
  // Wider than the tokenizer, as models' logits are; the others never may be said.
  text.vocab_size = text.tokenizer->vocab_size() + 21;
  text.vocabulary =
      std::make_shared<const GrammarVocabulary>(*text.tokenizer, text.vocab_size, std::vector{text.end}, false);
  return text;
}

}  // namespace

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

const Text& byte_level() {
  static const Text text = load("gpt2_style_bpe.json", "<|endoftext|>");
  return text;
}

const Text& sentence_piece() {
  static const Text text = load("llama2_style_spm_bpe.json", "</s>");
  return text;
}

Result<Constraint> compiled(const StructuredOutput& output, const Text& text) {
  const GrammarLimits limits;
  QUIRE_RETURN_IF_ERROR(check_structured_output(output, limits));
  QUIRE_ASSIGN_OR_RETURN(const CompiledConstraint done, compile_constraint(output, limits, text.vocabulary));
  return done.constraint;
}

StructuredOutput schema_output(std::string_view schema, bool any_whitespace) {
  return {.kind = Kind::kJsonSchema, .text = std::string(schema), .any_whitespace = any_whitespace};
}

std::vector<uint32_t> mask_of(TokenConstraint::State& state, const Text& text) {
  std::vector<uint32_t> mask((static_cast<size_t>(text.vocab_size) + 31) / 32, 0xDEADBEEF);
  EXPECT_TRUE(state.allowed(mask));
  return mask;
}

bool is_set(const std::vector<uint32_t>& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<size_t>(id) % 32) & 1) != 0;
}

bool accepts(const TokenConstraint& constraint, std::string_view answer, const Text& text) {
  const auto state = constraint.start();
  for (const TokenId id : text.tokenizer->encode(answer, false)) {
    if (!state->accept(id)) return false;
  }
  return is_set(mask_of(*state, text), text.end);
}

}  // namespace quire::grammar::testing
