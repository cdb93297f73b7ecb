// Reads numbers out of config.json with their names and ranges in the errors.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "types/model_config.h"

namespace quire::models {

class ConfigReader {
 public:
  // The object must outlive the reader.
  explicit ConfigReader(const boost::json::object& config) : config_(config) {}

  bool has(std::string_view key) const;  // present and not null
  // Errors: invalid_argument naming the key, what was found and what was expected.
  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  Result<double> number_or(std::string_view key, double fallback) const;  // finite
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;

 private:
  const boost::json::object& config_;
};

// "rope_parameters" (or the older "rope_theta" and "rope_scaling"). rotary_dim is left to the
// family.
Result<RopeConfig> read_rope(const boost::json::object& config, int64_t max_position);

// "eos_token_id" (an id or a list) of generation_config.json, else of config.json; and
// "bos_token_id".
Status read_special_ids(const boost::json::object& config, const boost::json::object& generation, ModelConfig& out);

}  // namespace quire::models
