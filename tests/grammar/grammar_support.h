// Tokenizers, compiled constraints, and what they accept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/compiler.h"
#include "text/tokenizer.h"
#include "types/structured_output.h"

namespace quire::grammar::testing {

using Kind = StructuredOutput::Kind;
using Constraint = std::shared_ptr<const TokenConstraint>;

// A file of tests/data.
std::string read_file(const std::string& name);

// A tokenizer with the width of its logits and its end token, which is special.
struct Text {
  std::unique_ptr<text::Tokenizer> tokenizer;
  int64_t vocab_size = 0;
  TokenId end = 0;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

const Text& byte_level();      // BPE of bytes: tokens cut characters and span JSON's
const Text& sentence_piece();  // SentencePiece with bytes as a last resort and a space before words

Result<Constraint> compiled(const StructuredOutput& output, const Text& text = byte_level());
StructuredOutput schema_output(std::string_view schema, bool any_whitespace = true);

std::vector<uint32_t> mask_of(TokenConstraint::State& state, const Text& text);
bool is_set(const std::vector<uint32_t>& mask, TokenId id);

// May the answer go on by the text, as it is encoded, and then end?
bool accepts(const TokenConstraint& constraint, std::string_view answer, const Text& text = byte_level());

}  // namespace quire::grammar::testing
