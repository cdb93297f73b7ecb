#include "nn/loader.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "base/log.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::nn {

Loader::Loader(Mode mode, const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, Quantization quantization,
               std::optional<DType> dtype, Shard shard, Stage stage)
    : mode_(mode),
      shard_(shard),
      stage_(stage),
      checkpoint_(checkpoint),
      backend_(backend),
      dtype_(dtype),
      placer_(mode == Mode::kPlan ? WeightPlacer::planning(backend) : WeightPlacer::loading(backend)) {
  quantized_.quantization = quantization;
}

StoredWeight Loader::weight(const WeightSpec& spec) {
  auto resolved = resolve_weight(checkpoint_, spec, [&](checkpoint::ParameterSpec tensor) {
    tensor.optional = tensor.optional || spec.optional;
    specs_.push_back(std::move(tensor));
    // What does not fit is reported with everything else by finish().
    return checkpoint_.declared(specs_.back());
  });
  if (resolved.ok()) {
    formats_.insert(resolved->format);
    return *std::move(resolved);
  }
  if (unresolved_.ok()) unresolved_ = resolved.status();
  return {};
}

void Loader::begin_layer(int32_t index, int32_t num_layers) {
  const Range own = layers_of(stage_, num_layers);
  holds_ = index >= own.first && index < own.end();
  if (own.count == 0 && !stage_.without_layers)
    fail(invalid_argument("pipeline_parallel_size {}: the model has {} layers; choose fewer stages", stage_.count,
                          num_layers));
}

int64_t Loader::column_grain(const WeightSpec& spec) const {
  const auto resolved = resolve_weight(
      checkpoint_, spec, [&](const checkpoint::ParameterSpec& tensor) { return checkpoint_.declared(tensor); });
  const bool is_there = resolved.ok() && resolved->present();
  return is_there && !resolved->turned ? resolved->grain : 1;
}

Range Loader::share_of_columns(const WeightSpec& spec, int64_t total) {
  if (shard_.is_whole()) return {0, total};
  constexpr int64_t kPreferred = 64;  // whole cache lines, whole panels
  int64_t least = column_grain(spec);
  int64_t most = std::lcm(least, kPreferred);
  if (rounds()) {  // what is rounded at load is rounded in blocks
    least = std::lcm(least, info(DType::kQ8_0).block_values);
    most = std::lcm(least, info(DType::kQ4_K).block_values);
  }
  const bool is_wide = (total + most - 1) / most >= shard_.size;
  const int64_t unit = is_wide ? most : least;
  const Range own = even_share(total, unit, shard_.rank, shard_.size);
  if (own.count > 0) return own;
  fail(invalid_argument(
      "tensor_parallel_size {}: the {} columns of {} cannot be cut into so many parts at multiples of {}; choose fewer "
      "processes",
      shard_.size, total, spec.name, least));
  return {0, total};
}

HeldForm Loader::held_form(const StoredWeight& weight, WeightRole role) const {
  if (!ops::can_be_quantised(weight.dtype())) return {weight.form()};
  const auto rounded = quantised_dtype(quantized_.quantization, role, weight.columns());
  if (rounded) return {*rounded, /*rounded=*/true};
  return {role == WeightRole::kExact ? weight.dtype() : held_dtype(weight.dtype(), dtype_)};
}

void Loader::note_converted(const StoredWeight& weight, DType form) {
  if (!dtype_) return;
  if (!ops::can_be_quantised(weight.dtype())) {
    converted_.add_kept(weight.dtype(), weight.bytes());
  } else if (form != weight.dtype()) {
    converted_.add_converted(weight.bytes(), TensorView{nullptr, form, {weight.rows(), weight.columns()}}.bytes());
  }
}

ops::ResidentTable Loader::table(const std::string& name, const Shape& shape, std::optional<Range> taken) {
  StoredWeight rows = weight({name, shape});
  if (!rows.present() || !holds_) return {};
  if (taken) rows = rows.cut_rows(taken->first, taken->count).value();  // a table is cut anywhere
  if (!is_weight_format(rows.dtype())) {
    fail(unimplemented("a table of {} ({}); supported: F32, F16, BF16 or one of GGUF's blocks",
                       quire::name(rows.dtype()), name));
    return {};
  }
  const DType form = held_dtype(rows.dtype(), dtype_);
  note_converted(rows, form);
  bytes_ += backend_.table_bytes({nullptr, form, {rows.rows(), rows.columns()}});
  auto table = placer_->table(rows, form);
  if (progress_) progress_(bytes_);
  if (table.ok()) return tables_[name] = *table;
  fail(table.status().with_prefix(name + ": "));
  return {};
}

std::vector<float> Loader::floats(const StoredWeight& weight) {
  if (!weight.present()) return {};
  return made(weight.rows() * weight.columns(), [&] { return read_floats(weight); });
}

bool Loader::has_shape(std::string_view name, const Shape& shape) const {
  return checkpoint_.declared({.name = std::string(name), .shape = shape}) != nullptr;
}

std::vector<float> Loader::vector(const std::string& name, int64_t size, bool optional) {
  // Some are stored as a matrix of one row.
  const Shape row{1, size};
  const bool is_row = has_shape(name, row);
  return floats(weight({.name = name, .shape = is_row ? row : Shape{size}, .optional = optional}));
}

std::vector<float> Loader::vectors(std::span<const Vector> parts) {
  struct Piece {
    StoredWeight stored;
    int64_t size = 0;
  };
  std::vector<Piece> pieces;
  int64_t declared = 0;
  for (const Vector& part : parts) {
    const StoredWeight whole = part.name.empty() ? StoredWeight() : weight({part.name, {part.size}});
    const std::vector<Range> taken = part.taken.empty() ? std::vector<Range>{{0, part.size}} : part.taken;
    for (const Range& range : taken) {
      Piece& piece = pieces.emplace_back(Piece{whole, range.count});
      if (!whole.present()) continue;
      auto cut = whole.cut_columns(range.first, range.count);
      if (!cut.ok()) fail(cut.status());
      if (cut.ok()) piece.stored = std::move(*cut);
      declared += range.count;
    }
  }
  return made(declared, [&] {
    std::vector<float> all;
    int64_t size = 0;
    for (const Piece& piece : pieces) {
      if (piece.stored.present()) std::ranges::copy(read_floats(piece.stored), std::back_inserter(all));
      all.resize(static_cast<size_t>(size += piece.size));
    }
    return all;
  });
}

std::vector<float> Loader::made(int64_t count, FunctionRef<std::vector<float>()> make) {
  if (!holds_) return {};
  bytes_ += count * static_cast<int64_t>(sizeof(float));
  return placer_->floats(make);
}

std::vector<float> Loader::read_floats(const StoredWeight& weight) {
  if (!is_weight_format(weight.dtype())) {
    fail(unimplemented("{} is {}, which is not read as numbers: expected F32, F16, BF16 or one of GGUF's blocks",
                       weight.name, name(weight.dtype())));
    return {};
  }
  std::vector<float> values(static_cast<size_t>(weight.rows() * weight.columns()));
  Status read = weight.read(DType::kF32, backend_, reinterpret_cast<uint8_t*>(values.data()));
  if (!read.ok()) fail(std::move(read));
  return values;
}

Loader::Segments Loader::matrix(std::span<const WeightSpec> parts, WeightRole role) {
  std::vector<StoredWeight> weights;
  for (const WeightSpec& part : parts) {
    weights.push_back(weight(part));
    if (!weights.back().present()) return {};
  }
  return place(weights, role);
}

std::vector<StoredWeight> Loader::as_held(std::span<const StoredWeight> parts, bool in_group) const {
  std::vector<StoredWeight> held(parts.begin(), parts.end());
  for (StoredWeight& part : held) {
    if (part.input.is_plain()) continue;
    ops::InputForm heeded = backend_.heeded(part.input, in_group);
    if (heeded.order != part.input.order || heeded.factor != part.input.factor) {
      part = part.scaled();
      heeded = {};
    }
    part.input = std::move(heeded);
  }
  return held;
}

Loader::Segments Loader::place(std::span<const StoredWeight> given, WeightRole role, bool in_group) {
  if (!holds_) return {};
  const std::vector<StoredWeight> held = as_held(given, in_group);
  const std::span<const StoredWeight> parts = held;
  Segments segments;
  const bool may_be_table = parts.size() == 1 && backend_.tables_are_weights() && parts[0].is_tensor();
  const auto table = may_be_table ? tables_.find(parts[0].name) : tables_.end();
  for (size_t begin = 0; begin < parts.size();) {
    const HeldForm form = held_form(parts[begin], role);
    size_t end = begin + 1;
    while (end < parts.size() && held_form(parts[end], role) == form && parts[end].input == parts[begin].input) ++end;
    const auto alike = parts.subspan(begin, end - begin);
    if (!form.rounded && role != WeightRole::kExact && quantized_.quantization != Quantization::kNone) {
      quantized_.num_kept += static_cast<int64_t>(alike.size());
      for (const StoredWeight& part : alike) quantized_.kept_bytes += part.bytes();
    }
    auto placed = table != tables_.end() && !form.rounded ? weight_of(table->second, parts[0], form.dtype)
                                                          : place_segment(alike, form);
    if (!placed.ok()) {
      fail(placed.status());
      return {};
    }
    if (*placed != nullptr) segments.push_back(*std::move(placed));
    begin = end;
    if (progress_) progress_(bytes_);
  }
  return segments;
}

std::unique_ptr<ops::PackedMatrix> Loader::weight_of(const ops::ResidentTable& table, const StoredWeight& rows,
                                                     DType form) {
  const TensorView held{rows.codes.data, form, rows.codes.shape};
  note_widened({&rows, 1}, form, backend_.table_bytes(held));
  return placer_->weight_of(table, held);
}

void Loader::note_widened(std::span<const StoredWeight> parts, DType form, int64_t packed_bytes) {
  // Whole panels of whole blocks: what widens is then the format.
  constexpr int64_t kRows = 1024;
  constexpr int64_t kColumns = 256;
  const DType dtype = parts[0].dtype();
  if (dtype_ && ops::can_be_quantised(dtype)) return;  // as wide as was asked for
  if (ops::has_row_scales(form)) return;               // codes as they are, beside their scales
  if (backend_.packed_bytes(form, kRows, kColumns) * 10 < kRows * row_bytes(dtype, kColumns) * 11) return;
  int64_t stored_bytes = 0;
  for (const StoredWeight& part : parts) stored_bytes += part.bytes();
  widened_.add(dtype, static_cast<int64_t>(parts.size()), stored_bytes, packed_bytes);
}

Result<std::unique_ptr<ops::PackedMatrix>> Loader::place_segment(std::span<const StoredWeight> parts, HeldForm form) {
  QUIRE_ASSIGN_OR_RETURN(WeightPlacer::Placed placed, placer_->matrix(parts, form));
  bytes_ += placed.bytes;
  if (placed.matrix != nullptr && !parts[0].input.is_plain())
    QUIRE_RETURN_IF_ERROR(backend_.set_input(*placed.matrix, parts[0].input));
  if (!form.rounded) {
    note_widened(parts, form.dtype, placed.bytes);
    for (const StoredWeight& part : parts) note_converted(part, form.dtype);
    return std::move(placed.matrix);
  }
  quantized_.num_matrices += static_cast<int64_t>(parts.size());
  for (const StoredWeight& part : parts) quantized_.stored_bytes += part.bytes();
  quantized_.packed_bytes += placed.bytes;
  if (std::ranges::find(quantized_.dtypes, form.dtype) == quantized_.dtypes.end())
    quantized_.dtypes.push_back(form.dtype);
  quantized_.seconds += placed.seconds;
  return std::move(placed.matrix);
}

std::shared_ptr<const AdaptableLayer> Loader::adaptable(AdaptableLayer layer) {
  layer.index = static_cast<int32_t>(adaptable_.size());
  layer.is_held = holds_;
  layer.entry = adaptable_.empty() ? 0 : adaptable_.back()->entry + adaptable_.back()->num_experts;
  return adaptable_.emplace_back(std::make_shared<const AdaptableLayer>(std::move(layer)));
}

namespace {

// A model is planned several times where others have its layers, or a head drafts for it: once is enough.
void tell_left_alone(std::string others) {
  static std::mutex mutex;
  static std::string told;
  const std::lock_guard lock(mutex);
  if (others.empty() || others == told) return;
  told = std::move(others);
  log_info("not loaded with the model, which does not use it: {}", told);
}

}  // namespace

Status Loader::finish(std::span<const std::string_view> ignored_suffixes,
                      std::span<const std::string_view> ignored_prefixes,
                      std::span<const std::string_view> elsewhere) const {
  QUIRE_RETURN_IF_ERROR(unresolved_);
  std::vector<std::string_view> ignored(ignored_suffixes.begin(), ignored_suffixes.end());
  for (const WeightFormat* format : formats_) {
    if (format != nullptr) ignored.insert(ignored.end(), format->ignored.begin(), format->ignored.end());
  }
  std::vector<std::string_view> not_its_own(ignored_prefixes.begin(), ignored_prefixes.end());
  not_its_own.insert(not_its_own.end(), elsewhere.begin(), elsewhere.end());
  QUIRE_RETURN_IF_ERROR(checkpoint::match_parameters(checkpoint_, specs_, ignored, not_its_own));
  if (mode_ == Mode::kPlan) tell_left_alone(checkpoint::describe_left_alone(checkpoint_, ignored_prefixes));
  QUIRE_RETURN_IF_ERROR(check_quantizable());
  return failure_;
}

Status Loader::check_quantizable() const {
  if (quantized_.quantization == Quantization::kNone) return {};
  std::set<std::string_view> unfit;
  const checkpoint::CheckpointTensor* first = nullptr;
  for (const checkpoint::ParameterSpec& spec : specs_) {
    const checkpoint::CheckpointTensor* tensor = checkpoint_.find(spec.name);
    if (tensor == nullptr || ops::can_be_quantised(tensor->view.dtype)) continue;
    unfit.insert(tensor->name);
    if (first == nullptr) first = tensor;
  }
  if (first == nullptr) return {};
  return invalid_argument(
      "--quantization {} rounds weights that are stored as F32, F16 or BF16, but {} of this checkpoint's {} tensors "
      "are "
      "quantised already, the first {} as {}: leave --quantization out, or use the model's 16-bit checkpoint",
      name(quantized_.quantization), unfit.size(), checkpoint_.tensors().size(), first->name, name(first->view.dtype));
}

}  // namespace quire::nn
