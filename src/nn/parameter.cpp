#include "nn/parameter.h"

namespace quire::nn {

Parameter::Parameter(Loader& loader, std::span<const float> values) {
  if (values.empty()) return;
  memory_ = Buffer(loader.backend().allocator(), values.size_bytes());
  if (memory_.data() == nullptr) {
    loader.fail(resource_exhausted("no memory for {} floats of a parameter", values.size()));
    return;
  }
  loader.backend().upload(memory_.data(), values.data(), values.size_bytes());
  size_ = static_cast<int64_t>(values.size());
}

}  // namespace quire::nn
