#include "quantize/importance.h"

#include "base/hashing.h"
#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

// Row `index` as floats, in `memory` where it is not stored so.
std::span<const float> row_of(const ops::ConstView& x, int64_t index, std::vector<float>& memory) {
  const auto columns = static_cast<size_t>(x.num_columns);
  const auto* row = static_cast<const uint8_t*>(x.data) + row_bytes(x.dtype, index * x.row_stride);
  if (x.dtype == DType::kF32) return {reinterpret_cast<const float*>(row), columns};
  memory.resize(columns);
  read_stored_row(x.dtype, row, x.num_columns, memory.data());
  return memory;
}

}  // namespace

void ImportanceMatrix::add(const std::string& module, const ops::ConstView& x) {
  Sums& sums = sums_[module];
  sums.squares.resize(static_cast<size_t>(x.num_columns), 0.0);
  std::vector<float> memory;
  for (int64_t i = 0; i < x.num_rows; ++i) {
    const std::span<const float> row = row_of(x, i, memory);
    for (size_t k = 0; k < row.size(); ++k)
      sums.squares[k] += static_cast<double>(row[k]) * static_cast<double>(row[k]);
  }
  sums.rows += x.num_rows;
}

std::vector<float> ImportanceMatrix::of(std::string_view module) const {
  const auto found = sums_.find(module);
  if (found == sums_.end() || found->second.rows == 0) return {};
  std::vector<float> out;
  for (const double sum : found->second.squares)
    out.push_back(static_cast<float>(sum / static_cast<double>(found->second.rows)));
  return out;
}

uint64_t ImportanceMatrix::hash() const {
  uint64_t seed = sums_.size();
  for (const auto& [module, sums] : sums_) {
    seed = hash_bytes(module.data(), module.size(), seed);
    seed = hash_bytes(sums.squares.data(), sums.squares.size() * sizeof(double), seed);
  }
  return seed;
}

bool InputObserver::adapt(const nn::StepContext& step, const nn::AdaptableLayer& layer) const {
  using Kind = nn::AdaptableLayer::Kind;
  return !step.workspace.measures() && layer.kind != Kind::kEmbedding && layer.kind != Kind::kHeads;
}

void InputObserver::add(const nn::StepContext& /*step*/, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                        const ops::View& /*out*/) const {
  see(layer, 0, layer.parts.size(), x);
}

void InputObserver::add_experts(const nn::StepContext& /*step*/, const nn::AdaptableLayer& layer,
                                const ops::ConstView& x, const int32_t* offsets, const ops::View& /*out*/) const {
  size_t first = 0;
  while (first < layer.parts.size()) {
    const int32_t expert = layer.parts[first].expert;
    size_t end = first + 1;
    while (end < layer.parts.size() && layer.parts[end].expert == expert) ++end;
    const int64_t begin = offsets[expert];
    const int64_t count = offsets[expert + 1] - begin;
    if (count > 0) see(layer, first, end - first, x.rows(begin, count));
    first = end;
  }
}

void InputObserver::add_embedded(const nn::StepContext& /*step*/, const nn::AdaptableLayer& /*layer*/,
                                 Mirrored<TokenId> /*ids*/, const ops::View& /*out*/) const {}

void InputObserver::add_heads(const nn::StepContext& /*step*/, const nn::AdaptableLayer& /*layer*/, int32_t /*first*/,
                              int32_t /*num_heads*/, const HeadRows& /*rows*/) const {}

void InputObserver::give_keys(const nn::StepContext& /*step*/, const nn::CacheLayer& /*layer*/) const {}

void ImportanceObserver::see(const nn::AdaptableLayer& layer, size_t first, size_t count,
                             const ops::ConstView& x) const {
  for (size_t i = first; i < first + count; ++i) matrix_.add(layer.parts[i].module, x);
}

}  // namespace quire::quantize
