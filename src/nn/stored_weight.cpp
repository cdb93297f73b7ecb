#include "nn/stored_weight.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "nn/weight_formats.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::nn {
namespace {

// Numbers as F32, F16 or BF16, to nearest, ties to even. False: F16 has no room for one of them.
bool write_numbers(const std::vector<float>& numbers, DType form, uint8_t* out) {
  if (form == DType::kF32) {
    std::memcpy(out, numbers.data(), numbers.size() * sizeof(float));
    return true;
  }
  bool fits = true;
  for (const float number : numbers) {
    const uint16_t bits = form == DType::kF16 ? float_to_half(number) : float_to_bfloat16(number);
    if (form == DType::kF16 && std::isfinite(number) && (bits & 0x7fff) == 0x7c00) fits = false;
    std::memcpy(out, &bits, sizeof(bits));
    out += sizeof(bits);
  }
  return fits;
}

// [rows, columns] of numbers of `size` bytes, to columns of `out`, whose rows are out_row bytes apart; those that are
// in turns go above each other.
void turn(const std::vector<uint8_t>& matrix, int64_t rows, int64_t columns, int64_t size, int64_t in_turns,
          uint8_t* out, int64_t out_row) {
  for (int64_t column = 0; column < columns; ++column) {
    const uint8_t* from = matrix.data() + column * size;
    uint8_t* to = out + (column % in_turns * (columns / in_turns) + column / in_turns) * out_row;
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(to + row * size, from + row * columns * size, static_cast<size_t>(size));
  }
}

}  // namespace

void StoredWeight::set_layout(DType stored_as, int64_t rows, int64_t columns) {
  stored = stored_as;
  stored_columns = num_columns = columns;
  runs = {{0, rows, 1}};
}

DType StoredWeight::dtype() const {
  return widened ? format->widened.value_or(stored) : stored;
}

DType StoredWeight::form() const {
  return widened ? format->widened.value_or(stored) : format->form(*this);
}

int64_t StoredWeight::num_stored_rows() const {
  int64_t count = 0;
  for (const Run& run : runs) count += run.count;
  return count;
}

int64_t StoredWeight::stored_row(int64_t index) const {
  for (const Run& run : runs) {
    if (index < run.count) return run.first + index * run.step;
    index -= run.count;
  }
  QUIRE_CHECK_MSG(false, "a row beyond the last of " + name);
  return 0;
}

Result<StoredWeight> StoredWeight::cut_rows(int64_t begin, int64_t count) const {
  return turned ? cut_stored_columns(begin, count) : cut_stored_rows(begin, count);
}

Result<StoredWeight> StoredWeight::cut_columns(int64_t begin, int64_t count) const {
  return turned ? cut_stored_rows(begin, count) : cut_stored_columns(begin, count);
}

Result<StoredWeight> StoredWeight::cut_stored_rows(int64_t begin, int64_t count) const {
  QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= num_stored_rows());
  StoredWeight cut = *this;
  cut.runs.clear();
  for (const Run& run : runs) {
    const int64_t skipped = std::min(begin, run.count);
    const int64_t taken = std::min(count, run.count - skipped);
    if (taken > 0) cut.runs.push_back({run.first + skipped * run.step, taken, run.step});
    begin -= skipped;
    count -= taken;
  }
  return cut;
}

Result<StoredWeight> StoredWeight::cut_stored_columns(int64_t begin, int64_t count) const {
  QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= num_columns && in_turns == 1);
  StoredWeight cut = *this;
  cut.first_column += begin;
  cut.num_columns = count;
  const int64_t end = cut.first_column + count;
  if (cut.first_column % grain == 0 && (end % grain == 0 || end == stored_columns)) return cut;
  return invalid_argument(
      "{}: columns {} to {} of {} cannot be cut out of {}: expected multiples of {}, which share a "
      "scale or a block",
      name, cut.first_column, end, stored_columns, format->name, grain);
}

StoredWeight StoredWeight::part(int64_t index, int64_t count) const {
  QUIRE_CHECK(runs.size() == 1 && runs[0].count % count == 0 && index < count);
  StoredWeight one = *this;
  one.runs[0].count /= count;
  one.runs[0].first += index * one.runs[0].count;
  return one;
}

StoredWeight StoredWeight::taken_apart(int64_t count) const {
  QUIRE_CHECK(runs.size() == 1 && in_turns == 1 && rows() % count == 0);
  StoredWeight apart = *this;
  if (turned) {
    apart.in_turns = count;
    return apart;
  }
  apart.runs.clear();
  for (int64_t i = 0; i < count; ++i) apart.runs.push_back({runs[0].first + i, runs[0].count / count, count});
  return apart;
}

StoredWeight StoredWeight::transposed() const {
  QUIRE_CHECK(in_turns == 1);
  StoredWeight other = scaled();
  other.input = {};
  other.turned = !turned;
  if (present() && info(form()).block_values != 1) other.widened = true;
  return other;
}

StoredWeight StoredWeight::scaled() const {
  StoredWeight other = *this;
  if (scales.data == nullptr) return other;
  other.widened = true;
  other.input.order = nullptr;
  other.input.factor = 1;
  return other;
}

std::optional<TensorView> StoredWeight::in_place(DType form) const {
  const bool is_one_tensor = scales.data == nullptr && zeros.data == nullptr && permutation.data == nullptr;
  if (!is_one_tensor || form != this->form() || form != stored || turned) return std::nullopt;
  if (runs.size() != 1 || runs[0].step != 1 || num_columns != stored_columns) return std::nullopt;
  const auto* data = static_cast<const uint8_t*>(codes.data) + runs[0].first * row_bytes(stored, stored_columns);
  return TensorView{data, stored, {runs[0].count, stored_columns}};
}

Status StoredWeight::read(DType form, ops::Backend& backend, uint8_t* out) const {
  const auto by_threads = [&](int64_t num_tasks, FunctionRef<void(int64_t, int)> body) {
    backend.host_parallel_for(num_tasks, body);
  };
  return read(form, ForEach(by_threads), out);
}

Status StoredWeight::read_alone(DType form, uint8_t* out) const {
  const auto one_by_one = [](int64_t num_tasks, FunctionRef<void(int64_t, int)> body) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
  };
  return read(form, ForEach(one_by_one), out);
}

Status StoredWeight::read(DType form, ForEach for_each, uint8_t* out) const {
  constexpr int64_t kRowsOfTask = 64;
  // Numbers have the columns' own order, and all that codes leave to the inputs.
  const bool leaves_to_inputs = input.order != nullptr || input.factor != 1;
  const DType own = form != this->form() && leaves_to_inputs ? *format->widened : this->form();
  QUIRE_CHECK(form == own || (is_weight_format(own) && ops::can_be_quantised(form)));
  const int64_t num_rows = num_stored_rows();
  const int64_t row_size = ops::quantised_row_bytes(form, num_columns);
  std::atomic<bool> too_large{false};
  for_each((num_rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t task, int) {
    const int64_t begin = task * kRowsOfTask;
    const int64_t count = std::min(kRowsOfTask, num_rows - begin);
    std::vector<uint8_t> unturned(static_cast<size_t>(turned ? count * row_size : 0));
    std::vector<uint8_t> row_as_own(static_cast<size_t>(form == own ? 0 : row_bytes(own, num_columns)));
    std::vector<float> numbers(static_cast<size_t>(form == own ? 0 : num_columns));
    uint8_t* to = turned ? unturned.data() : out + begin * row_size;
    for (int64_t i = 0; i < count; ++i, to += row_size) {
      format->read(*this, stored_row(begin + i), own, form == own ? to : row_as_own.data());
      if (form == own) continue;
      read_stored_row(own, row_as_own.data(), num_columns, numbers.data());
      if (!write_numbers(numbers, form, to)) too_large = true;
    }
    const int64_t size = info(form).block_bytes;
    if (turned) turn(unturned, count, num_columns, size, in_turns, out + begin * size, num_rows * size);
  });
  if (!too_large) return {};
  return invalid_argument(
      "--dtype float16: a weight {} of {} holds numbers beyond 65504, which float16 has no room for; choose bfloat16 "
      "or auto",
      Shape{rows(), columns()}.to_string(), quire::name(dtype()));
}

}  // namespace quire::nn
