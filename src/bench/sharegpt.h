// Chats of people with ChatGPT: a JSON list of {"conversations": [{"from", "value"}, ...]}, hundreds of megabytes. The
// file is walked in pieces and only the conversations that are used are parsed. One that is cut short (the copies that
// package indexes hold are) is read up to its last whole conversation.
#pragma once

#include <cstdint>
#include <istream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/dataset.h"
#include "text/tokenizer.h"

namespace quire::bench {

struct JsonElement {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Where the whole elements of the JSON list in `in` lie. A list that ends early gives those before the end. Errors:
// invalid_argument when no list begins there.
Result<std::vector<JsonElement>> find_list_elements(std::istream& in);

// The first question and its answer; nullopt for fewer than two turns or another shape.
struct Turn {
  std::string question;
  std::string answer;
};
std::optional<Turn> first_turn(std::string_view conversation_json);

// vLLM's filter: neither shorter than 4 tokens (a forced answer's length is not looked at), the prompt at most 1024,
// both together at most 2048.
bool has_usable_lengths(int64_t prompt_len, int64_t output_len, bool is_output_len_forced);

// options.num_prompts conversations in random order; repeated where the file has fewer that pass the filter. Errors:
// not_found, invalid_argument for a file without any.
Result<std::vector<Sample>> sharegpt_samples(const DatasetOptions& options, const text::Tokenizer& tokenizer,
                                             std::mt19937_64& random);

}  // namespace quire::bench
