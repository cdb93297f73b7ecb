// Random answers of a output, without a model: what tests and measurements put beside the output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "grammar/vocabulary.h"
#include "text/tokenizer.h"
#include "types/token_constraint.h"

namespace quire::grammar {

struct RandomWalk {
  uint64_t seed = 0;
  int32_t max_tokens = 600;
};

// Draws among the allowed tokens until an end token, what closes strings, lists and objects the rather the longer it
// gets. Returns the text; nullopt: it did not end within max_tokens. Errors: internal: no token was allowed
// and accepted.
Result<std::optional<std::string>> random_walk(const TokenConstraint& constraint, const GrammarVocabulary& vocabulary,
                                               const text::Tokenizer& tokenizer, const RandomWalk& walk);

}  // namespace quire::grammar
