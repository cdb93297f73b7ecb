#include "runner/adapter_split.h"

#include "base/check.h"

namespace quire::runner {
namespace {

using checkpoint::AdapterFile;

// Of a tensor in memory of its own: [rows, columns], of which number (r, c) is `view`'s number at source(r, c).
template <typename Code, typename Source>
void gather_codes(const TensorView& view, int64_t rows, int64_t columns, const Source& source, uint8_t* memory) {
  const auto* from = static_cast<const Code*>(view.data);
  auto* to = reinterpret_cast<Code*>(memory);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) *to++ = from[source(row, column)];
  }
}

template <typename Source>
TensorView gathered(const TensorView& view, int64_t rows, int64_t columns, const Source& source, SplitFactors& out) {
  out.memory.push_back(std::make_unique<uint8_t[]>(static_cast<size_t>(row_bytes(view.dtype, rows * columns))));
  uint8_t* memory = out.memory.back().get();
  row_bytes(view.dtype, 1) == 4 ? gather_codes<uint32_t>(view, rows, columns, source, memory)
                                : gather_codes<uint16_t>(view, rows, columns, source, memory);
  return {.data = memory, .dtype = view.dtype, .shape = {rows, columns}};
}

// Rows [first, first + count), where they lie.
TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  const int64_t columns = view.shape[1];
  return {.data = static_cast<const uint8_t*>(view.data) + row_bytes(view.dtype, first * columns),
          .dtype = view.dtype,
          .shape = {count, columns}};
}

// Which of the whole's each of those here is, one after another.
std::vector<int64_t> numbers_of(const nn::HeldPart& held) {
  std::vector<int64_t> numbers;
  for (const nn::Range& range : held.taken) {
    for (int64_t i = range.first; i < range.end(); ++i) numbers.push_back(i);
  }
  return numbers;
}

void keep_own(const nn::HeldPart& inputs, const nn::HeldPart& rows, AdapterFile::LowRank& pair, SplitFactors& out) {
  if (inputs.is_cut()) {
    const std::vector<int64_t> columns = numbers_of(inputs);
    const int64_t width = pair.down.shape[1];
    pair.down = gathered(
        pair.down, pair.down.shape[0], std::ssize(columns),
        [&](int64_t row, int64_t column) { return row * width + columns[static_cast<size_t>(column)]; }, out);
  }
  if (rows.is_cut()) {
    const std::vector<int64_t> taken = numbers_of(rows);
    const int64_t rank = pair.up.shape[1];
    pair.up = gathered(
        pair.up, std::ssize(taken), rank,
        [&](int64_t row, int64_t column) { return taken[static_cast<size_t>(row)] * rank + column; }, out);
  }
}

}  // namespace

SplitFactors own_factors(const AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer,
                         const nn::AdaptableLayer::Part& part) {
  QUIRE_CHECK(!pair.embeds && !pair.down_transposed);
  SplitFactors out;
  AdapterFile::LowRank own = pair;
  keep_own(layer.inputs, part.rows, own, out);
  out.all.push_back({.pair = std::move(own), .part = part});
  return out;
}

SplitFactors split_heads(const AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer) {
  QUIRE_CHECK(layer.kind == nn::AdaptableLayer::Kind::kHeads);
  SplitFactors out;
  const int32_t heads = layer.num_experts / 2;
  const nn::HeldPart& rows = layer.parts[0].rows;
  const int64_t first_row = rows.is_cut() ? rows.taken[0].first : 0;
  const int64_t rank = pair.up.shape[1];
  const int64_t latent = pair.down.shape[1];
  const TensorView turned = gathered(
      pair.down, latent, rank, [&](int64_t row, int64_t column) { return column * latent + row; }, out);
  const auto add = [&](const TensorView& down, const TensorView& up, int32_t number) {
    AdapterFile::LowRank own = pair;
    own.down = down;
    own.up = up;
    out.all.push_back({.pair = std::move(own), .part = {.module = pair.module, .size = up.shape[0], .expert = number}});
  };
  for (int32_t head = 0; head < heads; ++head) {
    const int64_t first = first_row + head * (layer.key_dim + layer.value_dim);
    const TensorView keys = gathered(
        pair.up, rank, layer.key_dim, [&](int64_t row, int64_t column) { return (first + column) * rank + row; }, out);
    add(keys, turned, head);
    add(pair.down, rows_of(pair.up, first + layer.key_dim, layer.value_dim), heads + head);
  }
  return out;
}

SplitFactors split_experts(const AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer) {
  QUIRE_CHECK(layer.kind == nn::AdaptableLayer::Kind::kExperts && pair.num_stacked == layer.num_experts);
  SplitFactors out;
  const int64_t experts = layer.num_experts;
  const int64_t rank = pair.up.shape[1] / experts;
  const int64_t in = layer.module_inputs();
  const int64_t size = layer.stack_outputs();
  const bool is_turned = pair.up.shape[0] != size || pair.down.shape[1] != in;
  const auto stored_row = [&](int64_t row) {
    if (!layer.interleaved) return row;
    return row < size / 2 ? 2 * row : 2 * (row - size / 2) + 1;
  };
  for (int64_t expert = 0; expert < experts; ++expert) {
    AdapterFile::LowRank own = pair;
    own.num_stacked = 0;
    const TensorView down = rows_of(pair.down, expert * rank, rank);
    const auto of_up = [&](int64_t row, int64_t column) { return row * rank * experts + column * experts + expert; };
    if (is_turned) {
      own.down = gathered(
          pair.up, rank, in, [&](int64_t row, int64_t column) { return of_up(column, row); }, out);
      own.up = gathered(
          down, size, rank, [&](int64_t row, int64_t column) { return column * size + stored_row(row); }, out);
    } else {
      own.down = down;
      own.up = gathered(
          pair.up, size, rank, [&](int64_t row, int64_t column) { return of_up(stored_row(row), column); }, out);
    }
    keep_own(layer.inputs, layer.stack_rows, own, out);
    const int64_t own_size = own.up.shape[0];
    out.all.push_back({.pair = std::move(own),
                       .part = {.module = pair.module, .size = own_size, .expert = static_cast<int32_t>(expert)}});
  }
  return out;
}

}  // namespace quire::runner
