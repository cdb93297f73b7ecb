#include "nn/loader.h"

namespace quire::nn {

const checkpoint::CheckpointTensor* Loader::declare(const std::string& name, const Shape& shape, bool optional) {
  specs_.push_back({name, shape, optional});
  const checkpoint::CheckpointTensor* tensor = checkpoint_.find(name);
  // What does not fit is reported with everything else by finish().
  return tensor != nullptr && tensor->view.shape == shape ? tensor : nullptr;
}

TensorView Loader::raw(const std::string& name, const Shape& shape) {
  const checkpoint::CheckpointTensor* tensor = declare(name, shape, /*optional=*/false);
  if (tensor == nullptr) return {};
  bytes_ += tensor->view.bytes();
  return tensor->view;
}

std::vector<float> Loader::vector(const std::string& name, int64_t size, bool optional) {
  const checkpoint::CheckpointTensor* tensor = declare(name, {size}, optional);
  if (tensor == nullptr) return {};
  bytes_ += size * static_cast<int64_t>(sizeof(float));
  if (planning()) return {};
  // The embedding op is the reader of every dtype: the vector is a table of one row.
  std::vector<float> values(static_cast<size_t>(size));
  const TokenId row = 0;
  backend_(ops::EmbeddingArgs{.ids = &row,
                              .num_tokens = 1,
                              .table = {.data = tensor->view.data, .dtype = tensor->view.dtype, .shape = {1, size}},
                              .out = values.data()});
  return values;
}

std::vector<std::unique_ptr<ops::PackedMatrix>> Loader::matrix(std::span<const Part> parts, int64_t columns) {
  std::vector<TensorView> views;
  for (const Part& part : parts) {
    const checkpoint::CheckpointTensor* tensor = declare(part.name, {part.rows, columns}, /*optional=*/false);
    if (tensor == nullptr) return {};
    views.push_back(tensor->view);
  }
  std::vector<std::unique_ptr<ops::PackedMatrix>> segments;
  for (size_t begin = 0; begin < views.size();) {
    size_t end = begin;
    int64_t rows = 0;
    while (end < views.size() && views[end].dtype == views[begin].dtype) rows += views[end++].shape[0];
    if (planning()) {
      bytes_ += backend_.packed_bytes(views[begin].dtype, rows, columns);
    } else {
      auto packed = backend_.pack(std::span(views).subspan(begin, end - begin));
      if (!packed.ok()) {
        if (failure_.ok()) failure_ = packed.status();
        return {};
      }
      bytes_ += (*packed)->bytes();
      segments.push_back(std::move(*packed));
    }
    begin = end;
  }
  return segments;
}

Status Loader::finish(std::span<const std::string_view> ignored_suffixes) const {
  QUIRE_RETURN_IF_ERROR(checkpoint::match_parameters(checkpoint_, specs_, ignored_suffixes));
  return failure_;
}

}  // namespace quire::nn
