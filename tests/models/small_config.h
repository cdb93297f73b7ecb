// A small config.json of any family, and how it is read.
#pragma once

#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "models/registry.h"

namespace quire::models {

inline boost::json::object small(std::string_view architecture) {
  return boost::json::object{
      {"architectures", {architecture}}, {"vocab_size", 512},      {"hidden_size", 64},
      {"intermediate_size", 128},        {"num_hidden_layers", 4}, {"num_attention_heads", 4},
      {"num_key_value_heads", 2},        {"head_dim", 16},         {"max_position_embeddings", 512}};
}

inline Result<ModelConfig> read(const boost::json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(const Family family, find_family(config));
  return family.read_config(config, {});
}

// `small` with one more field.
inline Result<ModelConfig> read_with(std::string_view architecture, std::string_view key, boost::json::value value) {
  boost::json::object config = small(architecture);
  config[key] = std::move(value);
  return read(config);
}

}  // namespace quire::models
