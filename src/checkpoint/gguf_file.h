// The GGUF container, versions 2 and 3: header, metadata, tensor directory. Nothing here knows what a model is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_metadata.h"
#include "tensor/tensor.h"

namespace quire::checkpoint {

struct GgufTensor {
  std::string_view name;
  TensorView view;  // the file's dimensions, innermost first, in our order: outermost first
};

struct GgufFile {
  uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the file's order

  // `bytes`: the whole file; it must be aligned to 64 bytes and outlive the result, which points into it. Every tensor
  // lies in the file, overlaps no other and is aligned to at least 8 bytes.
  // Errors: data_loss naming the field, what was found and what was expected; unimplemented for tensor types, versions
  // and byte orders that exist and are not read here.
  static Result<GgufFile> parse(std::span<const std::byte> bytes);
};

}  // namespace quire::checkpoint
