// GGUF metadata in the words of Hugging Face's config.json.
#pragma once

#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_metadata.h"
#include "checkpoint/tensor_list.h"

namespace quire::checkpoint {

struct GgufConfig {
  boost::json::object config;             // config.json
  boost::json::object generation_config;  // generation_config.json: every id that ends an answer; advice on sampling
};

// `architecture` is nullptr for one without a table, whose raw name (`architecture_name`) then stands in
// "architectures". Numbers are passed on as they are: whether they make sense is the model's to judge.
// Errors: data_loss naming a key that is missing or of the wrong type; unimplemented for a rope scaling whose numbers
// config.json has no words for.
Result<GgufConfig> read_gguf_config(const GgufMetadata& metadata, std::string_view architecture_name,
                                    const GgufArchitecture* architecture, const TensorList& tensors);

}  // namespace quire::checkpoint
