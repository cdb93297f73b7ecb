// A weight as a checkpoint stores it: described, not yet read. Cutting and turning change the description; what is
// meant is read once, in one place, when the weight is placed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "tensor/tensor.h"

namespace quire::nn {

struct WeightFormat;  // weight_formats.h

// A matrix [rows, columns], or a stack of such above each other: some of the rows and columns of what is stored. The
// checkpoint must outlive it.
struct StoredWeight {
  // Stored rows first, first + step, ...
  struct Run {
    int64_t first = 0;
    int64_t count = 0;
    int64_t step = 1;
  };

  // What the format says of the whole.
  const WeightFormat* format = nullptr;  // nullptr: a tensor of it is missing or does not fit, which the loader tells
  std::string name = {};                 // of the parameter
  DType stored = DType::kF32;            // its codes; what several tensors are together
  int64_t stored_columns = 0;
  int64_t grain = 1;  // columns are cut at multiples of it; rows anywhere, for each is read by its index
  TensorView codes = {};
  TensorView scales = {};       // no data: there are none, as of the next two
  TensorView zeros = {};        // what is taken off codes before they are scaled
  TensorView permutation = {};  // of each column the group whose scale it takes, where that is not its neighbours'
  std::shared_ptr<const std::vector<float>> made_scales = {};  // computed ones, or what all of a matrix shares
  ops::InputForm input = {};  // what it is multiplied by; an order is that of the columns of form()
  int64_t scale_rows = 1;     // so many rows and columns share one of `scales`
  int64_t scale_columns = 1;
  bool by_columns = false;  // codes of one scale lie column after column: a stored row is gathered out of them

  // What of it is meant.
  std::vector<Run> runs = {};
  int64_t first_column = 0;
  int64_t num_columns = 0;
  bool turned = false;   // stored rows are its columns
  int64_t in_turns = 1;  // of so many matrices, rows above each other, stored columns are in turns; 1 unless turned
  bool widened = false;  // read as what its format is widened to

  // All of `rows` stored rows.
  void set_layout(DType stored_as, int64_t rows, int64_t columns);

  bool present() const { return format != nullptr; }
  int64_t rows() const { return turned ? num_columns : num_stored_rows(); }
  int64_t columns() const { return turned ? num_stored_rows() : num_columns; }
  // What reports call it.
  DType dtype() const;
  // Bytes of its codes.
  int64_t bytes() const { return TensorView{nullptr, dtype(), {rows(), columns()}}.bytes(); }
  // What it is held in unless it is rounded or converted: its codes with their scales, or what it is widened to.
  DType form() const;

  // Errors: invalid_argument for a cut inside of what shares a scale or a block. REQUIRES: within rows(), columns().
  Result<StoredWeight> cut_rows(int64_t begin, int64_t count) const;
  Result<StoredWeight> cut_columns(int64_t begin, int64_t count) const;
  // One of `count` equal parts of the stored rows: an expert of a stack, a head's rows. REQUIRES: not taken apart.
  StoredWeight part(int64_t index, int64_t count) const;
  // Rows that are of `count` matrices in turns, as these above each other. REQUIRES: as part().
  StoredWeight taken_apart(int64_t count) const;
  // Its columns as rows; widened where codes cannot be turned.
  StoredWeight transposed() const;
  // Widened where scales lie in a tensor of their own; else itself.
  StoredWeight scaled() const;

  // Its rows in the file, where they lie there as `form`; nullopt where they have to be read.
  std::optional<TensorView> in_place(DType form) const;
  // Whether in_place() is all of a tensor.
  bool is_tensor() const { return in_place(stored) && bytes() == codes.bytes(); }
  // Its rows as `form`, ops::quantised_row_bytes(form, columns()) each; columns in the order of input() where that is
  // form(). REQUIRES: form(), or F32, F16 or BF16 of what
  // is_weight_format(). Errors: invalid_argument for a number that F16 has no room for.
  Status read(DType form, ops::Backend& backend, uint8_t* out) const;
  // The same by this thread alone, beside whatever a backend's threads do.
  Status read_alone(DType form, uint8_t* out) const;

 private:
  using ForEach = FunctionRef<void(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body)>;
  Status read(DType form, ForEach for_each, uint8_t* out) const;
  int64_t num_stored_rows() const;
  int64_t stored_row(int64_t index) const;
  Result<StoredWeight> cut_stored_rows(int64_t begin, int64_t count) const;
  Result<StoredWeight> cut_stored_columns(int64_t begin, int64_t count) const;
};

}  // namespace quire::nn
