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
#include "nn/adaptable_layer.h"
#include "nn/quantization.h"
#include "nn/shard.h"
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
  // their role is to stay exact; vectors are floats in any case. `shard`: what layers that are cut take their part by;
  // `stage`: which layers are held.
  Loader(Mode mode, const checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
         Quantization quantization = Quantization::kNone, std::optional<DType> dtype = std::nullopt, Shard shard = {},
         Stage stage = {});

  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  bool has_shape(std::string_view name, const Shape& shape) const;
  // In any format, whose tensors may be called otherwise.
  bool has_weight(std::string_view name) const { return nn::has_weight(checkpoint_, name); }
  ops::Backend& backend() { return backend_; }
  const Shard& shard() const { return shard_; }
  const Stage& stage() const { return stage_; }

  // What is asked for from here on is the embedding's, or layer `index`'s of so many, or what follows the layers, or
  // every stage's (as it is before the first of these). What another stage has is declared, and neither counted nor
  // held.
  void begin_front() { holds_ = stage_.is_first(); }
  void begin_layer(int32_t index, int32_t num_layers);
  void begin_back() { holds_ = stage_.is_last(); }
  void begin_common() { holds_ = true; }

  // Columns of this weight are cut at multiples of it. Declares nothing.
  int64_t column_grain(const WeightSpec& spec) const;
  bool rounds() const { return quantized_.quantization != Quantization::kNone; }
  // This rank's part of that many columns or rows, cut where column_grain() of the weight allows it. All of them where
  // nothing is cut. No such cut: the loader fails.
  Range share_of_columns(const WeightSpec& spec, int64_t total);

  // A table whose rows are read one by one, where the device reads it. When planning only its shape. Counts its bytes.
  // A weight that matrix() is asked for afterwards by the same name is the table's rows, where the backend holds both
  // alike: it takes nothing more.
  // rows: of these alone.
  ops::ResidentTable table(const std::string& name, const Shape& shape, std::optional<Range> rows = std::nullopt);
  // A small vector as floats on the host; empty when planning. `optional`: empty when the checkpoint has none.
  std::vector<float> vector(const std::string& name, int64_t size, bool optional = false);
  // Vectors one after another; zeros for one without a name.
  struct Vector {
    std::string name;
    int64_t size = 0;
    std::vector<Range> taken = {};  // of it these, one after another; none: all
  };
  std::vector<float> vectors(std::span<const Vector> parts);
  // Floats that a layer makes for itself (tables), counted with the rest; not made when planning.
  std::vector<float> made(int64_t count, FunctionRef<std::vector<float>()> make);

  // Declares and resolves a weight, for layers that cut or turn it before they place it. Not present where a tensor is
  // missing, which finish() tells.
  StoredWeight weight(const WeightSpec& spec);
  // Places a product out of parts that lie above each other, all with the same columns. Parts that are held in
  // different forms become segments of their own. No matrices when planning, or after a failure. Every weight of a
  // product passes here, so that what became of them is reported here. in_group: they are for a Backend::group().
  using Segments = std::vector<std::unique_ptr<ops::PackedMatrix>>;
  Segments place(std::span<const StoredWeight> parts, WeightRole role = WeightRole::kProjection, bool in_group = false);
  // Both; nothing where a part is missing.
  Segments matrix(std::span<const WeightSpec> parts, WeightRole role = WeightRole::kProjection);
  // A small weight as floats on the host; empty when planning.
  std::vector<float> floats(const StoredWeight& weight);

  // Gives the layer its number. What adapters may add to is listed in the order in which layers are made, also when
  // planning.
  std::shared_ptr<const AdaptableLayer> adaptable(AdaptableLayer layer);
  // Heads of keys and values that this rank has in every layer; nullopt: all.
  void tell_kv_heads(const Range& heads) { kv_heads_ = heads; }
  const std::optional<Range>& kv_heads() const { return kv_heads_; }
  const AdaptableLayers& adaptable_layers() const { return adaptable_; }

  // Calls this with bytes() after each table and weight of a product.
  void tell(std::function<void(int64_t bytes)> progress) { progress_ = std::move(progress); }

  // For finish() to return.
  void fail(Status status) {
    if (failure_.ok()) failure_ = std::move(status);
  }

  // Everything declared is there with its shape, nothing else is, all of it could be packed, and what was to be
  // quantised was not so already.
  // `ignored_suffixes`, `ignored_prefixes`: as for checkpoint::match_parameters. Of the latter it is said that they are
  // not loaded; prefixes of `elsewhere` are of what another model has of the same checkpoint.
  Status finish(std::span<const std::string_view> ignored_suffixes,
                std::span<const std::string_view> ignored_prefixes = {},
                std::span<const std::string_view> elsewhere = {}) const;

  // Bytes that the model will hold or read from the mapped file.
  int64_t bytes() const { return bytes_; }
  // Of these the weights whose format a backend holds in a form wider by a tenth or more.
  const WidenedWeights& widened() const { return widened_; }
  const QuantizationReport& quantized() const { return quantized_; }
  const ConversionReport& converted() const { return converted_; }

 private:
  Status check_quantizable() const;
  // As the backend can hold them: one that forms no inputs is given numbers in the place of reordered columns.
  std::vector<StoredWeight> as_held(std::span<const StoredWeight> parts, bool in_group) const;
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
  Shard shard_;
  Stage stage_;
  bool holds_ = true;  // what is asked for now
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
  AdaptableLayers adaptable_;
  std::optional<Range> kv_heads_;
};

}  // namespace quire::nn
