// Who guesses what follows a text without a model of his own: by what the text, its client and earlier answers say.
#pragma once

#include <memory>
#include <vector>

#include "types/draft_proposer.h"
#include "types/speculative_config.h"

namespace quire::runner {

// Of the request's own prediction (OpenAI's "prediction"): it is followed token by token; where the answer leaves it,
// the place is found again by the answer's last tokens, the nearest to where it would be by now.
std::unique_ptr<DraftProposer> make_prediction_proposer();

// Prompt lookup (Saxena, 2023): the last prompt_lookup_max tokens of the text, or fewer, at least prompt_lookup_min,
// are looked for in the text itself; what followed the latest place of the longest such run is proposed.
std::unique_ptr<DraftProposer> make_ngram_proposer(const SpeculativeConfig& config);

// After suffix decoding (Oliaro et al., "SuffixDecoding: extreme speculative decoding for emerging AI applications",
// NeurIPS 2025): the longest end of the text is looked for in the text itself and in earlier answers to the same tenant
// (and salt, and adapter); those places vote on each next token, the longer their match the more.
std::unique_ptr<DraftProposer> make_suffix_proposer(const SpeculativeConfig& config);

// The first that has a guess.
std::unique_ptr<DraftProposer> make_chain(std::vector<std::unique_ptr<DraftProposer>> proposers);

// A request's own prediction, then the method of the configuration, then the model, where there is one.
std::unique_ptr<DraftProposer> make_proposer(const SpeculativeConfig& config,
                                             std::unique_ptr<DraftProposer> model = nullptr);

}  // namespace quire::runner
