#include "runner/adapter_lengths.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/text_quote.h"
#include "nn/weight_formats.h"
#include "tensor/stored_values.h"

namespace quire::runner {
namespace {

using checkpoint::in_quotes;
using nn::StoredWeight;

std::vector<float> floats_of(const TensorView& view) {
  const int64_t count = view.shape.num_elements();
  std::vector<float> values(static_cast<size_t>(count));
  read_stored_row(view.dtype, view.data, count, values.data());
  return values;
}

Result<StoredWeight> base_weight(const checkpoint::Checkpoint& base, const nn::WeightSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(
      const StoredWeight weight,
      nn::resolve_weight(base, spec, [&](checkpoint::ParameterSpec tensor) { return base.declared(tensor); }));
  if (!weight.present()) return unimplemented("the base has no {} that DoRA could be taken of", in_quotes(spec.name));
  const StoredWeight numbers = weight.scaled();
  if (is_weight_format(numbers.dtype())) return numbers;
  return unimplemented("{} is {}, of which DoRA is not built", in_quotes(spec.name), name(numbers.dtype()));
}

// Sums of squares over rows of W + scale * up * down.
class SquaredLengths {
 public:
  SquaredLengths(const checkpoint::AdapterFile::LowRank& pair, int64_t in_features, int64_t size,
                 const std::function<int64_t(int64_t)>& source_of)
      : in_(in_features), size_(size), rank_(pair.up.shape[1]), sums_(static_cast<size_t>(size)) {
    down_ = floats_of(pair.down);
    if (pair.down_transposed) down_ = turned(down_, in_, rank_);
    const std::vector<float> up = floats_of(pair.up);
    scaled_up_.resize(up.size());
    for (int64_t n = 0; n < size_; ++n) {
      const float* from = up.data() + source_of(n) * rank_;
      for (int64_t r = 0; r < rank_; ++r) scaled_up_[index(n * rank_ + r)] = static_cast<float>(pair.scale) * from[r];
    }
  }

  // `row`: of W, [in_features].
  void add_row(int64_t n, const float* row) {
    adapted_.assign(row, row + in_);
    add_products(scaled_up_.data() + n * rank_, 1, down_, in_);
    double sum = 0;
    for (const float value : adapted_) sum += double{value} * value;
    sums_[index(n)] = sum;
  }

  // `column`: of W, [size].
  void add_column(int64_t k, const float* column) {
    if (up_columns_.empty()) up_columns_ = turned(scaled_up_, size_, rank_);
    adapted_.assign(column, column + size_);
    add_products(down_.data() + k, in_, up_columns_, size_);
    for (int64_t n = 0; n < size_; ++n) sums_[index(n)] += double{adapted_[index(n)]} * adapted_[index(n)];
  }

  double length(int64_t n) const { return std::sqrt(sums_[index(n)]); }

 private:
  static size_t index(int64_t i) { return static_cast<size_t>(i); }

  static std::vector<float> turned(const std::vector<float>& from, int64_t rows, int64_t columns) {
    std::vector<float> to(from.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        to[index(column * rows + row)] = from[index(row * columns + column)];
      }
    }
    return to;
  }

  // adapted += sum over ranks of factor[r] * vectors[r]; factors lie `stride` apart.
  void add_products(const float* factors, int64_t stride, const std::vector<float>& vectors, int64_t count) {
    for (int64_t r = 0; r < rank_; ++r) {
      const float factor = factors[r * stride];
      const float* vector = vectors.data() + r * count;
      for (int64_t i = 0; i < count; ++i) adapted_[index(i)] += factor * vector[i];
    }
  }

  int64_t in_;
  int64_t size_;
  int64_t rank_;
  std::vector<float> down_;        // [rank, in_features]
  std::vector<float> scaled_up_;   // [size, rank], by the model's rows
  std::vector<float> up_columns_;  // [rank, size]
  std::vector<float> adapted_;
  std::vector<double> sums_;
};

// Rows of W in `ranges`; or all columns, where it is stored so.
Status measure(StoredWeight weight, const std::vector<nn::Range>& ranges, SquaredLengths& lengths) {
  constexpr int64_t kRows = 64;
  const bool by_columns = weight.turned;
  if (by_columns) weight = weight.transposed();
  const int64_t width = weight.columns();
  std::vector<float> values(static_cast<size_t>(std::min(kRows, weight.rows()) * width));
  for (const nn::Range& range : by_columns ? std::vector<nn::Range>{{0, weight.rows()}} : ranges) {
    for (int64_t begin = range.first; begin < range.end(); begin += kRows) {
      const int64_t count = std::min(kRows, range.end() - begin);
      QUIRE_ASSIGN_OR_RETURN(const StoredWeight some, weight.cut_rows(begin, count));
      QUIRE_RETURN_IF_ERROR(some.read_alone(DType::kF32, reinterpret_cast<uint8_t*>(values.data())));
      for (int64_t i = 0; i < count; ++i) {
        const float* row = values.data() + i * width;
        by_columns ? lengths.add_column(begin + i, row) : lengths.add_row(begin + i, row);
      }
    }
  }
  return {};
}

}  // namespace

Result<RowGains> row_gains(const checkpoint::AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer,
                           const nn::AdaptableLayer::Part& part, const std::function<int64_t(int64_t)>& source_of,
                           const checkpoint::Checkpoint& base) {
  if (part.stored.empty()) {
    return unimplemented("module {} is adapted by DoRA, which is not built for experts", in_quotes(pair.module));
  }
  const int64_t rows = part.module_rows();
  const int64_t inputs = layer.module_inputs();
  const std::vector<nn::Range> own = part.rows.is_cut() ? part.rows.taken : std::vector<nn::Range>{{0, rows}};
  QUIRE_ASSIGN_OR_RETURN(
      const StoredWeight weight,
      base_weight(base, {.name = part.stored + ".weight", .shape = {rows, inputs}, .transposed = part.transposed}));
  SquaredLengths lengths(pair, inputs, rows, source_of);
  QUIRE_RETURN_IF_ERROR(measure(weight, own, lengths));
  std::vector<float> bias(static_cast<size_t>(rows));
  if (part.bias && layer.adds_bias) {
    QUIRE_ASSIGN_OR_RETURN(const StoredWeight stored,
                           base_weight(base, {.name = part.stored + ".bias", .shape = {rows}}));
    QUIRE_RETURN_IF_ERROR(stored.read_alone(DType::kF32, reinterpret_cast<uint8_t*>(bias.data())));
  }
  const std::vector<float> wanted = floats_of(pair.lengths);
  RowGains gains;
  for (const nn::Range& range : own) {
    for (int64_t row = range.first; row < range.end(); ++row) {
      const float length = wanted[static_cast<size_t>(source_of(row))];
      const double gain = length / lengths.length(row);
      if (!std::isfinite(gain)) {
        return data_loss("module {}: row {} would have the length {}, and without that it is {} long",
                         in_quotes(pair.module), row, length, lengths.length(row));
      }
      gains.gain.push_back(static_cast<float>(gain));
      gains.shift.push_back(static_cast<float>((1 - gain) * bias[static_cast<size_t>(row)]));
    }
  }
  return gains;
}

}  // namespace quire::runner
