#include "nn/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <set>

#include "base/log.h"
#include "tensor/stored_values.h"

namespace quire::nn {

const checkpoint::CheckpointTensor* Loader::declare(const std::string& name, const Shape& shape, bool optional) {
  specs_.push_back({name, shape, optional});
  // What does not fit is reported with everything else by finish().
  const checkpoint::CheckpointTensor* tensor = checkpoint_.declared(specs_.back());
  if (tensor == nullptr || tensor->view.dtype != DType::kF8E4M3) return tensor;
  auto scaled = ScaledWeight::find(checkpoint_, *tensor);
  if (!scaled.ok()) {
    if (scale_failure_.ok()) scale_failure_ = scaled.status();
  } else if (scaled_.emplace(tensor->view.data, *scaled).second) {
    specs_.push_back({scaled->scales().name, scaled->scales().view.shape});
  }
  return tensor;
}

const ScaledWeight* Loader::scales_of(const TensorView& view) const {
  const auto next = scaled_.upper_bound(view.data);
  if (next == scaled_.begin()) return nullptr;
  const ScaledWeight& before = std::prev(next)->second;
  return before.holds(view) ? &before : nullptr;
}

DType Loader::form_of(const TensorView& view, WeightRole role) const {
  const ScaledWeight* scaled = scales_of(view);
  if (scaled != nullptr) return scaled->form();
  return role == WeightRole::kExact ? view.dtype : held_dtype(view.dtype, dtype_);
}

void Loader::note_dtype(const TensorView& stored, DType form) {
  if (!dtype_) return;
  if (form != stored.dtype && ops::can_be_quantised(stored.dtype)) {
    converted_.add_converted(stored.bytes(), TensorView{nullptr, form, stored.shape}.bytes());
  } else if (!ops::can_be_quantised(stored.dtype)) {
    converted_.add_kept(stored.dtype, stored.bytes());
  }
}

TensorView Loader::with_scales(const TensorView& stored, std::vector<uint8_t>& memory) const {
  const ScaledWeight* scaled = scales_of(stored);
  if (scaled == nullptr) return stored;
  if (planning()) return {stored.data, DType::kBF16, stored.shape};
  memory = scaled->read(stored, DType::kBF16, backend_);
  return {memory.data(), DType::kBF16, stored.shape};
}

ops::ResidentTable Loader::table(const std::string& name, const Shape& shape) {
  const checkpoint::CheckpointTensor* tensor = declare(name, shape, /*optional=*/false);
  if (tensor == nullptr) return {};
  if (!is_weight_format(tensor->view.dtype)) {
    fail(unimplemented("a table of {} ({}); supported: F32, F16, BF16 or one of GGUF's blocks",
                       quire::name(tensor->view.dtype), name));
    return {};
  }
  TensorView held = tensor->view;
  held.dtype = held_dtype(held.dtype, dtype_);
  note_dtype(tensor->view, held.dtype);
  bytes_ += backend_.table_bytes(held);
  if (planning()) return tables_[name] = {.view = held};
  auto table =
      held.dtype == tensor->view.dtype ? backend_.table(tensor->view) : converted_table(tensor->view, held.dtype);
  if (progress_) progress_(bytes_);
  if (table.ok()) return tables_[name] = *table;
  fail(table.status().with_prefix(name + ": "));
  return {};
}

Result<ops::ResidentTable> Loader::converted_table(const TensorView& stored, DType dtype) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<uint8_t> rows, nn::converted(stored, dtype, backend_));
  if (!backend_.computes_in_host_memory()) return backend_.table({rows.data(), dtype, stored.shape});
  auto memory = std::make_shared<Buffer>(backend_.allocator(), rows.size());
  if (memory->data() == nullptr) return resource_exhausted("no memory for a table of {} bytes", rows.size());
  std::memcpy(memory->data(), rows.data(), rows.size());
  QUIRE_ASSIGN_OR_RETURN(ops::ResidentTable table, backend_.table({memory->data(), dtype, stored.shape}));
  table.memory = std::move(memory);
  return table;
}

const TensorView* Loader::peek(std::string_view name) const {
  const checkpoint::CheckpointTensor* tensor = checkpoint_.find(name);
  return tensor == nullptr ? nullptr : &tensor->view;
}

TensorView Loader::stored(const std::string& name, const Shape& shape) {
  const checkpoint::CheckpointTensor* tensor = declare(name, shape, /*optional=*/false);
  return tensor == nullptr ? TensorView() : tensor->view;
}

std::vector<float> Loader::floats(const std::string& name, int64_t rows, int64_t columns) {
  const checkpoint::CheckpointTensor* tensor = declare(name, {rows, columns}, /*optional=*/false);
  if (tensor == nullptr) return {};
  bytes_ += rows * columns * static_cast<int64_t>(sizeof(float));
  return read(*tensor, rows, columns);
}

std::vector<float> Loader::vector(const std::string& name, int64_t size, bool optional) {
  const checkpoint::CheckpointTensor* tensor = declare(name, {size}, optional);
  if (tensor == nullptr) return {};
  bytes_ += size * static_cast<int64_t>(sizeof(float));
  return read(*tensor, 1, size);
}

std::vector<float> Loader::read(const checkpoint::CheckpointTensor& tensor, int64_t rows, int64_t columns) {
  if (planning()) return {};
  const DType dtype = tensor.view.dtype;
  if (!is_weight_format(dtype)) {
    fail(unimplemented("{} is {}, which is not read as numbers: expected F32, F16, BF16 or one of GGUF's blocks",
                       tensor.name, name(dtype)));
    return {};
  }
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    read_stored_row(dtype, static_cast<const uint8_t*>(tensor.view.data) + row * row_bytes(dtype, columns), columns,
                    values.data() + row * columns);
  }
  return values;
}

std::vector<std::unique_ptr<ops::PackedMatrix>> Loader::matrix(std::span<const Part> parts, int64_t columns,
                                                               WeightRole role) {
  std::vector<TensorView> views;
  std::vector<std::vector<uint8_t>> turned;  // memory of the parts that were transposed
  for (const Part& part : parts) {
    const Shape shape = part.transposed ? Shape{columns, part.rows} : Shape{part.rows, columns};
    const checkpoint::CheckpointTensor* tensor = declare(part.name, shape, /*optional=*/false);
    if (tensor == nullptr) return {};
    views.push_back(tensor->view);
    if (!part.transposed) continue;
    views.back().shape = {part.rows, columns};
    if (planning()) continue;
    auto memory = transpose(tensor->view);
    if (!memory.ok()) {
      if (failure_.ok()) failure_ = memory.status().with_prefix(part.name + ": ");
      return {};
    }
    turned.push_back(std::move(*memory));
    views.back().data = turned.back().data();
  }
  const bool may_be_table = parts.size() == 1 && !parts[0].transposed && backend_.tables_are_weights();
  const auto table = may_be_table ? tables_.find(parts[0].name) : tables_.end();
  return pack(views, role, table == tables_.end() ? nullptr : &table->second);
}

std::vector<std::unique_ptr<ops::PackedMatrix>> Loader::pack(std::span<const TensorView> views, WeightRole role) {
  return pack(views, role, nullptr);
}

std::vector<std::unique_ptr<ops::PackedMatrix>> Loader::pack(std::span<const TensorView> views, WeightRole role,
                                                             const ops::ResidentTable* table) {
  std::vector<std::unique_ptr<ops::PackedMatrix>> segments;
  const auto target = [&](const TensorView& view) -> std::optional<DType> {
    if (!ops::can_be_quantised(view.dtype)) return std::nullopt;
    return quantised_dtype(quantized_.quantization, role, view.shape[1]);
  };
  for (const TensorView& view : views) {
    if (view.dtype != DType::kF8E4M3 || scales_of(view) != nullptr) continue;
    fail(unimplemented("a matrix of F8_E4M3 that is stored transposed or without scales"));
    return {};
  }
  for (size_t begin = 0; begin < views.size();) {
    const std::optional<DType> rounded = target(views[begin]);
    size_t end = begin + 1;
    while (end < views.size() &&
           (rounded ? target(views[end]) == rounded
                    : form_of(views[end], role) == form_of(views[begin], role) && !target(views[end])))
      ++end;
    if (!rounded && role != WeightRole::kExact && quantized_.quantization != Quantization::kNone) {
      for (const TensorView& view : views.subspan(begin, end - begin)) {
        ++quantized_.num_kept;
        quantized_.kept_bytes += view.bytes();
      }
    }
    std::unique_ptr<ops::PackedMatrix> packed = table != nullptr && !rounded
                                                    ? weight_of(*table, views[begin], role)
                                                    : pack_segment(views.subspan(begin, end - begin), role, rounded);
    if (packed != nullptr) {
      segments.push_back(std::move(packed));
    } else if (!planning()) {
      return {};
    }
    begin = end;
    if (progress_) progress_(bytes_);
  }
  return segments;
}

std::unique_ptr<ops::PackedMatrix> Loader::weight_of(const ops::ResidentTable& table, const TensorView& stored,
                                                     WeightRole role) {
  TensorView held = stored;
  held.dtype = form_of(stored, role);
  note_form({&stored, 1}, held.dtype, backend_.table_bytes(held));
  return planning() ? nullptr : backend_.weight_of(table, held);
}

void Loader::note_form(std::span<const TensorView> matrices, DType form, int64_t packed_bytes) {
  // Whole panels of whole blocks: what widens is then the format.
  constexpr int64_t kRows = 1024;
  constexpr int64_t kColumns = 256;
  if (dtype_ && ops::can_be_quantised(matrices[0].dtype)) return;  // as wide as was asked for
  const DType dtype = matrices[0].dtype;
  if (backend_.packed_bytes(form, kRows, kColumns) * 10 < kRows * row_bytes(dtype, kColumns) * 11) return;
  int64_t stored_bytes = 0;
  for (const TensorView& matrix : matrices) stored_bytes += matrix.bytes();
  widened_.add(matrices[0].dtype, static_cast<int64_t>(matrices.size()), stored_bytes, packed_bytes);
}

std::unique_ptr<ops::PackedMatrix> Loader::pack_segment(std::span<const TensorView> views, WeightRole role,
                                                        std::optional<DType> rounded) {
  const DType form = form_of(views[0], role);
  int64_t rows = 0;
  int64_t stored_bytes = 0;
  for (const TensorView& view : views) {
    rows += view.shape[0];
    stored_bytes += view.bytes();
  }
  std::unique_ptr<ops::PackedMatrix> packed;
  int64_t bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  if (planning()) {
    bytes = backend_.packed_bytes(rounded.value_or(form), rows, views[0].shape[1]);
  } else {
    std::vector<TensorView> read(views.begin(), views.end());
    std::vector<std::vector<uint8_t>> memory;
    for (TensorView& view : read) {
      const ScaledWeight* scaled = scales_of(view);
      if (scaled != nullptr) {
        memory.push_back(scaled->read(view, scaled->form(), backend_));
      } else if (!rounded && view.dtype != form) {
        auto turned = nn::converted(view, form, backend_);
        if (!turned.ok()) {
          fail(turned.status());
          return nullptr;
        }
        memory.push_back(std::move(*turned));
      } else {
        continue;
      }
      view.data = memory.back().data();
      view.dtype = scaled != nullptr ? scaled->form() : form;
    }
    auto result = rounded ? backend_.quantise(read, *rounded) : backend_.pack(read);
    if (!result.ok()) {
      if (failure_.ok()) failure_ = result.status();
      return nullptr;
    }
    packed = std::move(*result);
    bytes = packed->bytes();
  }
  bytes_ += bytes;
  if (!rounded) {
    note_form(views, form, bytes);
    for (const TensorView& view : views) note_dtype(view, form);
    return packed;
  }
  quantized_.num_matrices += static_cast<int64_t>(views.size());
  quantized_.stored_bytes += stored_bytes;
  quantized_.packed_bytes += bytes;
  if (std::ranges::find(quantized_.dtypes, *rounded) == quantized_.dtypes.end()) quantized_.dtypes.push_back(*rounded);
  if (!planning()) {
    quantized_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return packed;
}

Result<std::vector<uint8_t>> Loader::transpose(const TensorView& view) const {
  if (info(view.dtype).block_values != 1) {
    return unimplemented("a matrix of {} that is stored transposed; supported: formats of single numbers",
                         name(view.dtype));
  }
  const auto size = static_cast<size_t>(info(view.dtype).block_bytes);
  const int64_t columns = view.shape[0];
  const int64_t rows = view.shape[1];
  const auto* from = static_cast<const uint8_t*>(view.data);
  std::vector<uint8_t> memory(static_cast<size_t>(view.bytes()));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      std::memcpy(memory.data() + static_cast<size_t>(row * columns + column) * size,
                  from + static_cast<size_t>(column * rows + row) * size, size);
    }
  }
  return memory;
}

Status Loader::finish(std::span<const std::string_view> ignored_suffixes,
                      std::span<const std::string_view> ignored_prefixes) const {
  QUIRE_RETURN_IF_ERROR(scale_failure_);
  std::vector<std::string_view> ignored(ignored_suffixes.begin(), ignored_suffixes.end());
  // What activations and a cache of 8 bits would be divided by; neither is rounded by numbers of the checkpoint here.
  constexpr std::string_view kOfActivations[] = {".input_scale", ".input_scale_ub", ".output_scale",
                                                 ".q_scale",     ".k_scale",        ".v_scale"};
  if (!scaled_.empty()) ignored.insert(ignored.end(), std::begin(kOfActivations), std::end(kOfActivations));
  QUIRE_RETURN_IF_ERROR(checkpoint::match_parameters(checkpoint_, specs_, ignored, ignored_prefixes));
  const std::string others = checkpoint::describe_left_alone(checkpoint_, ignored_prefixes);
  if (planning() && !others.empty()) log_info("not loaded, since nothing here uses it: {}", others);
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
