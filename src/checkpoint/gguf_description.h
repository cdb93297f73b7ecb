// What a GGUF file says of its model.
#pragma once

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_metadata.h"

namespace quire::checkpoint {

// The numbers of the model stay in the metadata, where its family reads them (models/gguf_reader.h): whether they make
// sense is the model's to judge.
struct GgufDescription {
  std::string architecture;  // general.architecture: before each key
  // As "architectures" of a config.json would name it; of an architecture without a table its raw name.
  std::string model_class;
  GgufMetadata metadata;  // views into the file, which the checkpoint holds
};

// Errors: data_loss for a key of the wrong type; unimplemented for another kind of router.
Result<GgufDescription> describe_gguf(const GgufMetadata& metadata, std::string_view name,
                                      const GgufArchitecture* architecture);

// What its makers advise about drawing tokens and every id that ends an answer, in the words of generation_config.json.
// Errors: data_loss for a key of the wrong type.
Result<boost::json::object> read_gguf_generation_config(const GgufMetadata& metadata);

}  // namespace quire::checkpoint
