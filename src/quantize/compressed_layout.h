// Where the tensors of a compressed-tensors checkpoint of W4A16 lie in its one safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "nn/adaptable_layer.h"

namespace quire::quantize {

// A matrix that becomes codes.
struct CodedModule {
  std::string name;  // "model.layers.0.mlp.up_proj"
  int32_t layer = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // In the file, from its beginning: int32 [rows, columns / 8], eight codes each, the first lowest, 8 added to each;
  // scales [rows, columns / group].
  int64_t packed_offset = 0;
  int64_t scales_offset = 0;
};

struct CompressedLayout {
  int64_t group_size = 0;
  DType scale_dtype = DType::kF16;
  std::vector<CodedModule> modules;       // by layer
  std::map<std::string, int64_t> kept;    // other tensors by name: their offsets
  std::map<std::string, int64_t> shapes;  // modules by name: where int64 [2], rows and columns, lies
  std::vector<uint8_t> header;            // the file's beginning
  int64_t file_bytes = 0;
  boost::json::object quantization_config;
};

// The module whose weight is the part's: experts have no other name than that which adapters know them by.
const std::string& stored_module(const nn::AdaptableLayer::Part& part);

// `products`: what the model's layers say of themselves. group_size: as CompressedOptions has it. Errors: as
// write_compressed().
Result<CompressedLayout> lay_out_compressed(const checkpoint::Checkpoint& checkpoint,
                                            const nn::AdaptableLayers& products, int64_t group_size);

}  // namespace quire::quantize
