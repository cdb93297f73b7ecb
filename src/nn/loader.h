// How a model gets its parameters. A family's constructor asks for every parameter by name and
// shape; the same code runs twice: first to plan (what is declared, how many bytes it will take,
// from headers alone), then to load.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "nn/quantization.h"
#include "nn/scaled_weights.h"
#include "nn/weight_dtype.h"
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
         Quantization quantization = Quantization::kNone, std::optional<DType> dtype = std::nullopt)
      : mode_(mode), checkpoint_(checkpoint), backend_(backend), dtype_(dtype) {
    quantized_.quantization = quantization;
  }

  bool planning() const { return mode_ == Mode::kPlan; }
  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  ops::Backend& backend() { return backend_; }

  // A table whose rows are read one by one, where the device reads it. When planning only its shape. Counts its bytes.
  // A weight that matrix() is asked for afterwards by the same name is the table's rows, where the backend holds both
  // alike: it takes nothing more.
  ops::ResidentTable table(const std::string& name, const Shape& shape);
  // A small vector as floats on the host; empty when planning. `optional`: empty when the checkpoint has none.
  std::vector<float> vector(const std::string& name, int64_t size, bool optional = false);
  // One matrix product out of parts that lie above each other along the output dimension: each
  // [rows, columns]. Parts of different dtypes become segments of their own.
  struct Part {
    std::string name;
    int64_t rows = 0;
    bool transposed = false;  // stored as [columns, rows]
  };
  std::vector<std::unique_ptr<ops::PackedMatrix>> matrix(std::span<const Part> parts, int64_t columns,
                                                         WeightRole role = WeightRole::kProjection);

  // For layers that cut or turn what is stored before they pack it. peek() declares nothing: nullptr where there is no
  // such tensor. stored() declares a tensor that pack() will count; nothing where it is missing.
  const TensorView* peek(std::string_view name) const;
  TensorView stored(const std::string& name, const Shape& shape);
  // The matrices [rows, columns] above each other, as matrix() packs them. Their memory is not read when planning. The
  // one place that every weight of a product passes on its way from the checkpoint to the backend, and where it is
  // quantised if that was asked for.
  std::vector<std::unique_ptr<ops::PackedMatrix>> pack(std::span<const TensorView> matrices,
                                                       WeightRole role = WeightRole::kProjection);
  // `stored`, or what it is with its scales (scaled_weights.h) as BF16, whose memory is `memory`; that is not filled
  // when planning.
  TensorView with_scales(const TensorView& stored, std::vector<uint8_t>& memory) const;
  // A small matrix as floats on the host; empty when planning.
  std::vector<float> floats(const std::string& name, int64_t rows, int64_t columns);

  // Calls this with bytes() after each table and weight of a product.
  void tell(std::function<void(int64_t bytes)> progress) { progress_ = std::move(progress); }

  // For finish() to return.
  void fail(Status status) {
    if (failure_.ok()) failure_ = std::move(status);
  }

  // Memory that a layer makes for itself (tables): counted with the rest.
  void count(int64_t bytes) { bytes_ += bytes; }

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
  // The memory of `view` [columns, rows] in the order of [rows, columns]. Errors: unimplemented for block formats.
  Result<std::vector<uint8_t>> transpose(const TensorView& view) const;
  Status check_quantizable() const;
  // Rows as floats; nothing when planning.
  std::vector<float> read(const checkpoint::CheckpointTensor& tensor, int64_t rows, int64_t columns);
  // The product of these matrices of one dtype, as stored (nullopt) or rounded; nullptr when planning or after a
  // failure.
  std::unique_ptr<ops::PackedMatrix> pack_segment(std::span<const TensorView> matrices, WeightRole role,
                                                  std::optional<DType> rounded);
  // A table of another dtype than the stored one, in memory of its own.
  Result<ops::ResidentTable> converted_table(const TensorView& stored, DType dtype);
  // The same of a table's rows, which have been counted.
  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const TensorView& stored,
                                               WeightRole role);
  const checkpoint::CheckpointTensor* declare(const std::string& name, const Shape& shape, bool optional);
  // The scales of a weight that has been declared; nullptr: it has none.
  const ScaledWeight* scales_of(const TensorView& view) const;
  // `table`: of the one matrix that there is, to be its weight unless it is rounded; nullptr: there is none.
  std::vector<std::unique_ptr<ops::PackedMatrix>> pack(std::span<const TensorView> matrices, WeightRole role,
                                                       const ops::ResidentTable* table);
  // What a matrix is packed as where it is not rounded.
  DType form_of(const TensorView& view, WeightRole role) const;
  // Matrices of one dtype that were packed, or are planned to be.
  void note_form(std::span<const TensorView> matrices, DType form, int64_t packed_bytes);
  // That `stored` is held as `form`.
  void note_dtype(const TensorView& stored, DType form);

  Mode mode_;
  const checkpoint::Checkpoint& checkpoint_;
  ops::Backend& backend_;
  std::optional<DType> dtype_;
  std::vector<checkpoint::ParameterSpec> specs_;
  std::map<std::string, ops::ResidentTable, std::less<>> tables_;
  std::map<const void*, ScaledWeight> scaled_;  // by where their codes begin
  Status failure_;                              // the first
  Status scale_failure_;  // the first of scales, which says more than that nobody knows their tensor
  int64_t bytes_ = 0;
  std::function<void(int64_t bytes)> progress_;
  ConversionReport converted_;
  WidenedWeights widened_;
  QuantizationReport quantized_;
};

}  // namespace quire::nn
