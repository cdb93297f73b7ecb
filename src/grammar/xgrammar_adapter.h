// The one place that knows xgrammar: vocabularies, compilation and matching behind our own interfaces. Its exceptions
// and its warnings end here: a warning says that a part of what was asked for would be ignored, so it is an error.
// Private to grammar/.
#pragma once

#include <memory>

#include "base/status.h"
#include "grammar/vocabulary.h"
#include "types/structured_output.h"
#include "types/token_constraint.h"

namespace quire::grammar {

struct CompiledConstraint {
  std::shared_ptr<const TokenConstraint> constraint;
  size_t bytes = 0;  // about, in memory
};

// Takes as long as it takes, on this thread. The vocabulary is kept alive by what comes back.
// Errors: invalid_argument saying what of the form is not understood or not supported; resource_exhausted.
// REQUIRES: checked before (grammar/check.h).
Result<CompiledConstraint> compile_constraint(const StructuredOutput& form,
                                              std::shared_ptr<const GrammarVocabulary> vocabulary);

}  // namespace quire::grammar
