// What a model's layers cache, as text and as JSON.
#pragma once

#include <string>

#include <boost/json.hpp>

#include "runner/kv_layout.h"

namespace quire::cli {

// The arithmetic of a token's bytes, a line for layers that are stored alike:
//   a token      2 (K, V) x 30 layers x 3 kv heads x 64 x 2 B = 23040 B
std::string kv_arithmetic(const runner::KvLayout& layout);

// [{"layers": 30, "kind": "keys and values", "kv_heads": 3, "key_dim": 64, "value_dim": 64, "window": 0,
//   "dtype": "F16", "token_bytes": 768}]: as many layers of each kind, and bytes of a token in one of them.
boost::json::array kv_layers_json(const runner::KvLayout& layout);

}  // namespace quire::cli
