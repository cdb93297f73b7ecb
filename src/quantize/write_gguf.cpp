#include "quantize/write_gguf.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/hashing.h"
#include "quantize/partial_file.h"
#include "quantize/round_blocks.h"
#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

constexpr int64_t kRowsAtOnceBytes = int64_t{64} << 20;  // of floats and of rounded rows

bool is_rounded_already(DType dtype) {
  return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
}

Status check_source(const GgufSourceTensor& tensor, const GgufOptions& options) {
  const DType stored = tensor.view.dtype;
  if (!is_weight_format(stored)) {
    return unimplemented("tensor {} is {}, expected F32, F16 or BF16", tensor.name, name(stored));
  }
  if (!is_rounded_already(stored) || options.allow_requantize) return {};
  return invalid_argument(
      "tensor {} is {}: the checkpoint is quantised already, and what is rounded twice is off by both errors. Start "
      "from F32, F16 or BF16, or ask for it with --allow-requantize",
      tensor.name, name(stored));
}

// The importance of a tensor's columns, of a stack for each expert; empty where none is known (of experts that the
// source keeps in stacks, of tables).
std::vector<std::vector<float>> column_weights(const ImportanceMatrix& importance, const GgufSourceTensor& tensor,
                                               bool has_output) {
  const Shape& shape = tensor.view.shape;
  // A tied embedding is the head as well, where every row of it counts with each token.
  const bool is_head = tensor.name == "token_embd.weight" && !has_output;
  std::vector<std::string> modules = tensor.expert_modules;
  if (modules.empty()) modules.push_back(is_head ? "lm_head" : tensor.module);
  std::vector<std::vector<float>> weights(modules.size());
  for (size_t i = 0; i < modules.size() && shape.rank() >= 2; ++i) {
    weights[i] = importance.of(modules[i]);
    if (std::ssize(weights[i]) != shape[shape.rank() - 1]) weights[i].clear();
  }
  return weights;
}

const uint8_t* row_at(const GgufSourceTensor& tensor, int64_t num_rows, int64_t columns, int64_t row) {
  if (!tensor.experts.empty()) {
    const int64_t of_expert = num_rows / std::ssize(tensor.experts);
    const TensorView& matrix = tensor.experts[static_cast<size_t>(row / of_expert)];
    return static_cast<const uint8_t*>(matrix.data) + row % of_expert * row_bytes(matrix.dtype, columns);
  }
  const auto* data = tensor.made.empty() ? static_cast<const uint8_t*>(tensor.view.data)
                                         : reinterpret_cast<const uint8_t*>(tensor.made.data());
  return data + source_row(tensor, num_rows, row) * row_bytes(tensor.view.dtype, columns);
}

Status write_tensor(const GgufSourceTensor& tensor, DType type, std::span<const std::vector<float>> weights,
                    int64_t offset, ThreadPool& threads, PartialFile& file) {
  const Shape& shape = tensor.view.shape;
  // A bias of heads has a number a row.
  const int64_t columns = shape.rank() == 1 && tensor.heads > 0 ? 1 : shape[shape.rank() - 1];
  const int64_t num_rows = columns == 0 ? 0 : shape.num_elements() / columns;
  const int64_t out_bytes = row_bytes(type, columns);
  const int64_t rows_of_weights = std::max<int64_t>(num_rows / std::ssize(weights), 1);
  const int64_t at_once = std::max<int64_t>(1, kRowsAtOnceBytes / std::max<int64_t>(out_bytes, 1));
  std::vector<std::vector<float>> rows(static_cast<size_t>(threads.num_threads()));
  std::vector<uint8_t> rounded(static_cast<size_t>(std::min(at_once, num_rows) * out_bytes));
  std::atomic<bool> fits{true};
  std::atomic<bool> finite{true};
  for (int64_t begin = 0; begin < num_rows; begin += at_once) {
    const int64_t count = std::min(at_once, num_rows - begin);
    threads.parallel_for(count, [&](int64_t task, int thread) {
      std::vector<float>& row = rows[static_cast<size_t>(thread)];
      row.resize(static_cast<size_t>(columns));
      const uint8_t* stored = row_at(tensor, num_rows, columns, begin + task);
      uint8_t* out = rounded.data() + task * out_bytes;
      if (type == tensor.view.dtype) return void(std::memcpy(out, stored, static_cast<size_t>(out_bytes)));
      read_stored_row(tensor.view.dtype, stored, columns, row.data());
      if (!std::ranges::all_of(row, [](float x) { return std::isfinite(x); })) {
        finite = false;
      } else if (!round_row(type, row, weights[static_cast<size_t>((begin + task) / rows_of_weights)], out)) {
        fits = false;
      }
    });
    if (!finite) return invalid_argument("tensor {} holds numbers that are infinite or none", tensor.name);
    if (!fits) return invalid_argument("tensor {} holds numbers that {} has no room for", tensor.name, name(type));
    QUIRE_RETURN_IF_ERROR(
        file.write(offset + begin * out_bytes, {rounded.data(), static_cast<size_t>(count * out_bytes)}));
  }
  return {};
}

}  // namespace

uint64_t hash_checkpoint(const checkpoint::Checkpoint& checkpoint) {
  uint64_t seed = checkpoint.tensors().size();
  for (const checkpoint::CheckpointTensor& tensor : checkpoint.tensors()) {
    seed = hash_bytes(tensor.stored_name.data(), tensor.stored_name.size(), seed);
    const std::string shape = tensor.view.shape.to_string() + std::string(name(tensor.view.dtype));
    seed = hash_bytes(shape.data(), shape.size(), seed);
    const auto sample = static_cast<size_t>(std::min<int64_t>(tensor.view.bytes(), 256));
    seed = hash_bytes(tensor.view.data, sample, seed);
  }
  return seed;
}

Result<WrittenFile> write_gguf(GgufSource source, const ImportanceMatrix& importance, const GgufOptions& options,
                               ThreadPool& threads, const Progress& progress) {
  source.model.has_importance = !importance.empty();
  GgufHeader& header = source.header;
  header.set("general.file_type", options.mix.file_type);
  if (options.mix.rounds) header.set("general.quantization_version", uint32_t{2});
  WrittenFile written;
  std::vector<DType> types;
  for (const GgufSourceTensor& tensor : source.tensors) {
    QUIRE_RETURN_IF_ERROR(check_source(tensor, options));
    DType type = choose_type(options.mix, source.model, tensor.name, tensor.view.dtype, tensor.view.shape);
    // A router that is stored in blocks.
    if (!can_round_to(type) && type != tensor.view.dtype) type = DType::kF32;
    types.push_back(type);
    header.add_tensor(tensor.name, tensor.view.shape, type);
    written.bytes_by_type[std::string(name(type))] += TensorView{nullptr, type, tensor.view.shape}.bytes();
  }
  const std::vector<uint8_t> front = header.bytes();
  written.bytes = std::ssize(front) + header.data_bytes();
  written.tensors = std::ssize(source.tensors);
  uint64_t purpose = hash_bytes(front.data(), front.size(), options.source_hash);
  if (!importance.empty()) {
    const uint64_t hash = importance.hash();
    purpose = hash_bytes(&hash, sizeof(hash), purpose);
  }
  QUIRE_ASSIGN_OR_RETURN(PartialFile file, PartialFile::open(options.out, purpose, written.bytes));
  written.tensors_found_done = file.pieces_done();
  QUIRE_RETURN_IF_ERROR(file.write(0, front));
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const GgufSourceTensor& tensor = source.tensors[i];
    if (static_cast<int64_t>(i) < file.pieces_done()) continue;
    progress(fmt::format("tensor {} of {}: {} {} to {}", i + 1, source.tensors.size(), tensor.name,
                         name(tensor.view.dtype), name(types[i])));
    const auto weights = column_weights(importance, tensor, source.model.has_output);
    const int64_t offset = std::ssize(front) + header.offset_of(i);
    QUIRE_RETURN_IF_ERROR(write_tensor(tensor, types[i], weights, offset, threads, file));
    QUIRE_RETURN_IF_ERROR(file.finish_piece());
  }
  QUIRE_RETURN_IF_ERROR(file.finish());
  return written;
}

}  // namespace quire::quantize
