// How a model gets its parameters. A family's constructor asks for every parameter by name and
// shape; the same code runs twice: first to plan (what is declared, how many bytes it will take,
// from headers alone), then to load.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "nn/quantization.h"
#include "nn/weight_dtype.h"
#include "nn/weight_formats.h"
#include "nn/weight_placer.h"
#include "nn/widened_weights.h"
#include "ops/backend.h"

namespace quire::nn {

class Loader {
 public:
  enum class Mode { kPlan, kLoad };

  // Both must outlive the loader; the checkpoint must outlive every view that table() gave. `dtype`: what tables and
  // weights of products that are stored in 16 or 32 bits are held in (weight_dtype.h), unless they are quantised or
  // their role is to stay exact; vectors are floats in any case.
  Loader(Mode mode, const checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
         Quantization quantization = Quantization::kNone, std::optional<DType> dtype = std::nullopt);

  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  // In any format, whose tensors may be called otherwise.
  bool has_weight(std::string_view name) const { return nn::has_weight(checkpoint_, name); }
  ops::Backend& backend() { return backend_; }

  // A table whose rows are read one by one, where the device reads it. When planning only its shape. Counts its bytes.
  // A weight that matrix() is asked for afterwards by the same name is the table's rows, where the backend holds both
  // alike: it takes nothing more.
  ops::ResidentTable table(const std::string& name, const Shape& shape);
  // A small vector as floats on the host; empty when planning. `optional`: empty when the checkpoint has none.
  std::vector<float> vector(const std::string& name, int64_t size, bool optional = false);
  // Vectors one after another; zeros for one without a name.
  struct Vector {
    std::string name;
    int64_t size = 0;
  };
  std::vector<float> vectors(std::span<const Vector> parts);
  // Floats that a layer makes for itself (tables), counted with the rest; not made when planning.
  std::vector<float> made(int64_t count, FunctionRef<std::vector<float>()> make);

  // Declares and resolves a weight, for layers that cut or turn it before they place it. Not present where a tensor is
  // missing, which finish() tells.
  StoredWeight weight(const WeightSpec& spec);
  // Places a product out of parts that lie above each other, all with the same columns. Parts that are held in
  // different forms become segments of their own. No matrices when planning, or after a failure. Every weight of a
  // product passes here, so that what became of them is reported here.
  using Segments = std::vector<std::unique_ptr<ops::PackedMatrix>>;
  Segments place(std::span<const StoredWeight> parts, WeightRole role = WeightRole::kProjection);
  // Both; nothing where a part is missing.
  Segments matrix(std::span<const WeightSpec> parts, WeightRole role = WeightRole::kProjection);
  // A small weight as floats on the host; empty when planning.
  std::vector<float> floats(const StoredWeight& weight);

  // Calls this with bytes() after each table and weight of a product.
  void tell(std::function<void(int64_t bytes)> progress) { progress_ = std::move(progress); }

  // For finish() to return.
  void fail(Status status) {
    if (failure_.ok()) failure_ = std::move(status);
  }

  // Everything declared is there with its shape, nothing else is, all of it could be packed, and what was to be
  // quantised was not so already.
  // `ignored_suffixes`, `ignored_prefixes`: as for checkpoint::match_parameters.
  Status finish(std::span<const std::string_view> ignored_suffixes,
                std::span<const std::string_view> ignored_prefixes = {}) const;

  // Bytes that the model will hold or read from the mapped file.
  int64_t bytes() const { return bytes_; }
  // Of these the weights whose format a backend holds in a form wider by a tenth or more.
  const WidenedWeights& widened() const { return widened_; }
  const QuantizationReport& quantized() const { return quantized_; }
  const ConversionReport& converted() const { return converted_; }

 private:
  Status check_quantizable() const;
  HeldForm held_form(const StoredWeight& weight, WeightRole role) const;
  // Parts that are held alike; nullptr when planning.
  Result<std::unique_ptr<ops::PackedMatrix>> place_segment(std::span<const StoredWeight> parts, HeldForm form);
  // The same of all rows of a table, which have been counted.
  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const StoredWeight& rows, DType form);
  // That parts of one format were packed, or are planned to be; that one is held as `form`.
  void note_widened(std::span<const StoredWeight> parts, DType form, int64_t packed_bytes);
  void note_converted(const StoredWeight& weight, DType form);
  std::vector<float> read_floats(const StoredWeight& weight);

  Mode mode_;
  const checkpoint::Checkpoint& checkpoint_;
  ops::Backend& backend_;
  std::optional<DType> dtype_;
  std::unique_ptr<WeightPlacer> placer_;
  std::vector<checkpoint::ParameterSpec> specs_;
  std::map<std::string, ops::ResidentTable, std::less<>> tables_;
  std::set<const WeightFormat*> formats_;  // of what has been resolved
  Status failure_;                         // the first
  Status unresolved_;  // the first of weight(), which says more than that nobody knows a tensor beside it
  int64_t bytes_ = 0;
  std::function<void(int64_t bytes)> progress_;
  ConversionReport converted_;
  WidenedWeights widened_;
  QuantizationReport quantized_;
};

}  // namespace quire::nn
