// The formats in which checkpoints keep weights: one table. A format says how it is recognised, which tensors it has,
// what a backend may hold it as, and how a row is read. A weight takes three steps:
//   declare   the tensors that the checkpoint must have for it, so that all of them are accounted for
//   resolve   where they lie, from headers: a StoredWeight
//   place     read, converted or rounded, and packed as the backend holds it (weight_placer.h)
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "checkpoint/checkpoint.h"
#include "nn/stored_weight.h"

namespace quire::nn {

// What a layer asks for.
struct WeightSpec {
  std::string name;  // "model.layers.0.mlp.down_proj.weight"
  Shape shape;       // [columns], [rows, columns], or a stack [count, rows, columns]
  // The family stores matrices as [columns, rows]. A format with a layout of its own does not.
  bool transposed = false;
  bool optional = false;
};

// Declares a tensor. nullptr: the checkpoint has none of that shape, which is told with all else that does not fit.
using DeclareTensor = FunctionRef<const checkpoint::CheckpointTensor*(checkpoint::ParameterSpec tensor)>;

struct WeightFormat {
  std::string_view name;  // for people
  // Its codes have the weight's name, or have this in place of its ".weight".
  std::string_view ending;
  bool (*fits)(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
               const checkpoint::CheckpointTensor& codes);
  // Declares its tensors and says in `out`, which comes with format and name, where they are.
  Status (*resolve)(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                    StoredWeight& out);
  // StoredWeight::form(): its codes if a kernel reads them with their scales.
  DType (*form)(const StoredWeight& weight);
  // What it is read as where its codes are not kept; nullopt: they are numbers.
  std::optional<DType> widened;
  // The meant columns of a stored row as form() or widened.
  void (*read)(const StoredWeight& weight, int64_t row, DType form, uint8_t* out);
  // Endings of tensors beside such weights that nothing here reads.
  std::span<const std::string_view> ignored = {};
};

// Whether the checkpoint has this weight in any format.
bool has_weight(const checkpoint::Checkpoint& checkpoint, std::string_view name);

// Not present: a tensor is missing or has another shape. Errors: data_loss, unimplemented.
Result<StoredWeight> resolve_weight(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                                    DeclareTensor declare);

// What formats whose codes are named as the weight declare of them; nullptr as of DeclareTensor.
const checkpoint::CheckpointTensor* declare_codes(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                                                  DeclareTensor declare);
// Errors: unimplemented where a weight is stored transposed.
Status refuse_transposed(const WeightSpec& spec, DType stored);

}  // namespace quire::nn
