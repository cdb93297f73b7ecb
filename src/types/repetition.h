// Repeated runs at the end of a text: whether an answer goes round in circles.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire {

// Do the last tokens consist of min_count copies of one pattern of min_pattern_size to max_pattern_size tokens?
// tokens: those of the answer alone, oldest first. A pure function, meant to be asked after every token: it costs about
// one comparison for each size where nothing repeats, and at worst grows linearly with min_count * max_pattern_size.
// vLLM's repetition_detection. REQUIRES: a detection that validate() accepts.
bool ends_in_repetition(std::span<const TokenId> tokens, const RepetitionDetection& detection);

// lengths[shift], for every shift in [1, tokens.size()): how many of the last tokens equal the one `shift` before them,
// counted from the end to the first that does not. lengths[0] is 0. The Z-algorithm (Gusfield, "Algorithms on strings,
// trees and sequences", 1997, 1.4) from the end: linear.
void matching_tails(std::span<const TokenId> tokens, std::vector<size_t>& lengths);

}  // namespace quire
