// Whether an answer goes round in circles.
#pragma once

#include <span>

#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire {

// Do the last tokens consist of min_count copies of one pattern of min_pattern_size to max_pattern_size tokens?
// tokens: those of the answer alone, oldest first. A pure function, meant to be asked after every token: it costs about
// one comparison for each size where nothing repeats, and at worst grows linearly with min_count * max_pattern_size.
// vLLM's repetition_detection. REQUIRES: a detection that validate() accepts.
bool ends_in_repetition(std::span<const TokenId> tokens, const RepetitionDetection& detection);

}  // namespace quire
