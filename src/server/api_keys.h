// The keys of clients: who they are in logs and metrics, and what is theirs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::server {

struct ApiKey {
  std::string name;               // what logs and metrics call it, never the key
  std::string key;                // the secret
  double weight = 1;              // of its share of the work, 0.001 to 1000000
  int64_t tokens_per_minute = 0;  // of prompts and answers together; 0: no bound
};

// The text of a file of keys. A line a key, "NAME KEY [weight=W] [tokens-per-minute=N]", separated by blanks; lines
// that begin with '#' and empty ones say nothing. Errors: invalid_argument with the line's number, never with a key.
Result<std::vector<ApiKey>> parse_api_keys(std::string_view text);

// `keys`, called "key-1" and so on, then `named`. `weights` belong to `keys`, one each, or are empty.
// Errors: invalid_argument (an empty or repeated key or name, a weight or quota out of range).
Result<std::vector<ApiKey>> all_api_keys(const std::vector<std::string>& keys, const std::vector<double>& weights,
                                         const std::vector<ApiKey>& named);

// For each key what its owner is called where that is kept: it says nothing of the key, and is the same whichever other
// keys there are. `purpose`: what it is kept for.
std::vector<std::string> lasting_names(const std::vector<std::string>& keys, std::string_view purpose);

}  // namespace quire::server
