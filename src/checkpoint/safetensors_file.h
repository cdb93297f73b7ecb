// The safetensors container: a JSON header and the tensors' bytes behind it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace quire::checkpoint {

struct SafetensorsTensor {
  std::string name;
  TensorView view;  // aligned to the size of an element
};

struct SafetensorsFile {
  std::vector<SafetensorsTensor> tensors;  // by offset
  // The format promises no alignment. A tensor that the file places across its element's alignment is copied here, and
  // its view shows the copy.
  std::vector<std::unique_ptr<std::byte[]>> copies;

  // `bytes`: the whole file; it must be aligned to 64 bytes and outlive the result. The rules are the reference
  // reader's: a header of at most 100 MB, at most 100,000 tensors, and ranges that cover the data without gaps or
  // overlaps. Errors: data_loss naming tensor, what was found and what was expected; unimplemented for dtypes that
  // exist and are not read here (F32, F16, BF16, I32 and I64 are).
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes);
};

}  // namespace quire::checkpoint
