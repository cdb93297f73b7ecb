#include "runner/memory_planner.h"

#include <algorithm>

#include "runner/device_sampler.h"

namespace quire::runner {

int64_t activation_floats(const models::Model& model, ops::Backend& backend, int64_t num_tokens) {
  nn::Workspace workspace;
  const nn::CacheGroup group;
  const std::vector<nn::CacheLayer> layers(model.kv_layers(DType::kF32).size());
  const nn::Batch batch{.num_tokens = num_tokens, .groups = {&group, 1}, .layers = layers};
  model.forward({.backend = backend, .batch = batch, .workspace = workspace});
  return workspace.most_used();
}

int64_t logit_floats(const models::Model& model, ops::Backend& backend, int64_t num_rows) {
  nn::Workspace workspace;
  const nn::Batch none;
  const ops::View rows = workspace.take(num_rows, model.config().hidden_size);
  const ops::View logits = workspace.take(num_rows, model.config().vocab_size);
  model.logits({.backend = backend, .batch = none, .workspace = workspace}, rows, logits);
  return workspace.most_used();
}

namespace {

// Memory behind the tensors of the largest step: the model's activations, the gathered rows and logits of one chunk,
// what sampling on the device takes, the flat batch itself, the kernels' scratch.
int64_t workspace_bytes(const EngineConfig& config, const PlannedModel& planned, ops::Backend& backend) {
  const int64_t tokens = config.max_num_batched_tokens;
  const int64_t max_blocks = (planned.max_model_len + config.block_size - 1) / config.block_size;
  // Ids, where they come from, positions, slots; tables, and who shares what of them.
  const int64_t num_spans = backend.shares_spans() ? max_blocks * config.block_size / ops::kSharedSpan : 0;
  const int64_t batch_bytes = tokens * static_cast<int64_t>(3 * sizeof(int32_t) + sizeof(int64_t)) +
                              config.max_num_seqs * (2 + max_blocks) * static_cast<int64_t>(sizeof(int32_t)) +
                              config.max_num_seqs * num_spans * static_cast<int64_t>(sizeof(ops::SpanPlace));
  const int64_t sampler_bytes =
      backend.computes_in_host_memory()
          ? 0
          : DeviceSampler::device_bytes(DeviceSampler::limits_of(planned)) + masked_hidden_bytes(planned);
  return (planned.workspace_floats + planned.logit_floats) * static_cast<int64_t>(sizeof(float)) + batch_bytes +
         sampler_bytes + backend.scratch_bytes(tokens);
}

// Whether a cache of floats is what accuracy asks for: nothing else of the computation is rounded.
bool wants_floats(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, const PlannedModel& planned) {
  if (config.activation_dtype == ActivationDType::kFloat32) return true;
  if (planned.quantization != Quantization::kNone) return false;
  const auto tensors = checkpoint.tensors();
  if (tensors.empty()) return !planned.weight_dtype && checkpoint.dtype_summary() == name(DType::kF32);
  return std::all_of(tensors.begin(), tensors.end(), [&](const checkpoint::CheckpointTensor& tensor) {
    return nn::held_dtype(tensor.view.dtype, planned.weight_dtype) == DType::kF32;
  });
}

void plan_recordings(const EngineConfig& config, const ops::Backend& backend, PlannedModel& planned) {
  if (config.enforce_eager || !backend.can_record()) return;
  // Which of two tables rotates a sequence is decided step by step, by the host.
  if (planned.config.rope.scaling == RopeScaling::kLongRope) return;
  // Steps of more tokens take a card longer than its host needs to call their kernels.
  constexpr int32_t kMostTokens = 512;
  const int32_t most = config.max_cudagraph_capture_size > 0 ? config.max_cudagraph_capture_size : kMostTokens;
  planned.most_recorded_tokens = std::min(most, config.max_num_batched_tokens);
  planned.largest_recorded_step = std::min(planned.most_recorded_tokens, config.max_num_seqs);
}

}  // namespace

int64_t masked_hidden_bytes(const PlannedModel& planned) {
  return planned.max_num_seqs * planned.config.hidden_size * static_cast<int64_t>(sizeof(float));
}

double memory_utilization(const EngineConfig& config, ops::Backend& backend) {
  if (config.memory_utilization > 0) return config.memory_utilization;
  return backend.computes_in_host_memory() ? 0.5 : 0.9;
}

DType kv_dtype_of(KvCacheDType choice) {
  switch (choice) {
    case KvCacheDType::kAuto:
    case KvCacheDType::kFloat32:
      break;
    case KvCacheDType::kFloat16:
      return DType::kF16;
    case KvCacheDType::kBFloat16:
      return DType::kBF16;
    case KvCacheDType::kFp8E4M3:
      return DType::kF8E4M3;
    case KvCacheDType::kFp8E5M2:
      return DType::kF8E5M2;
    case KvCacheDType::kInt8:
      return DType::kI8;
  }
  return DType::kF32;
}

namespace {

// How many blocks there are room for, in both pools.
void size_pools(const EngineConfig& config, ops::Backend& backend, int64_t free_bytes, const PlannedModel& planned,
                MemoryPlan& memory) {
  memory.num_swap_blocks = static_cast<int64_t>(config.swap_space * static_cast<double>(1 << 30)) / memory.block_bytes;
  if (config.num_gpu_blocks_override > 0) {
    memory.num_blocks = config.num_gpu_blocks_override;
  } else if (config.kv_cache_memory_bytes > 0) {
    memory.num_blocks = config.kv_cache_memory_bytes / memory.block_bytes;
  } else {
    // A file is not this memory, nor is the host's where the device has its own.
    const bool swaps_here = config.swap_file.empty() && backend.computes_in_host_memory();
    const int64_t swap_bytes = swaps_here ? memory.swap_bytes() : 0;
    const double share = memory_utilization(config, backend);
    const int64_t fixed = memory.weight_bytes + memory.workspace_bytes + swap_bytes;
    const double left = backend.computes_in_host_memory()
                            ? static_cast<double>(free_bytes - fixed) * share
                            : static_cast<double>(free_bytes) * share - static_cast<double>(fixed);
    memory.free_bytes = free_bytes;
    memory.memory_utilization = share;
    memory.num_blocks = static_cast<int64_t>(std::max(left, 0.0) / static_cast<double>(memory.block_bytes));
    memory.num_blocks = std::min(memory.num_blocks, memory.blocks_of(planned.max_model_len) * config.max_num_seqs);
  }
  // Block ids are 32 bits wide.
  memory.num_blocks = std::min<int64_t>(memory.num_blocks, (int64_t{1} << 31) - 1);
  memory.kv_bytes = memory.num_blocks * memory.block_bytes;
}

}  // namespace

Result<PlannedModel> plan_model(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint,
                                ops::Backend& backend, int64_t free_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const models::Family family, models::find_family(checkpoint));
  return plan_model(family, config, checkpoint, backend, free_bytes);
}

Result<PlannedModel> plan_model(const models::Family& family, const EngineConfig& config,
                                const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, int64_t free_bytes) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  PlannedModel planned;
  planned.kv_dtype = kv_dtype_of(config.kv_cache_dtype);
  planned.quantization = config.quantization;
  planned.weight_dtype = nn::wanted_dtype(config.dtype);
  if (config.kv_cache_dtype == KvCacheDType::kAuto && !wants_floats(config, checkpoint, planned)) {
    planned.kv_dtype = DType::kF16;
  }
  planned.family = family;
  QUIRE_ASSIGN_OR_RETURN(planned.config, models::read_model_config(planned.family, checkpoint));
  planned.config.dtype = checkpoint.dtype_summary();
  if (planned.weight_dtype && planned.config.dtype != name(*planned.weight_dtype)) {
    planned.config.dtype += fmt::format(" to {}", name(config.dtype));
  }
  if (planned.quantization != Quantization::kNone) {
    planned.config.dtype += fmt::format(" to {}", name(planned.quantization));
  }
  planned.swap_folder = config.swap_file;
  if (config.max_model_len < 0 || config.max_model_len > planned.config.max_position) {
    const bool dynamic = planned.config.rope.scaling == RopeScaling::kDynamic;
    return invalid_argument(
        "max_model_len is {}, but the model was made for at most {} tokens of context{}", config.max_model_len,
        planned.config.max_position,
        dynamic ? ", and its rope scaling \"dynamic\" turns every cached key anew for each token beyond "
                  "them, which is not supported: give it \"yarn\" or \"linear\""
                : "");
  }
  planned.max_model_len = config.max_model_len > 0 ? config.max_model_len : planned.config.max_position;
  planned.max_num_seqs = config.max_num_seqs;

  nn::Loader loader(nn::Loader::Mode::kPlan, checkpoint, backend, planned.quantization, planned.weight_dtype);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<models::Model> model,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  planned.workspace_floats = activation_floats(*model, backend, config.max_num_batched_tokens);
  // One for each sequence, and with the log-probabilities of prompts one for each token.
  planned.logit_rows = std::min({backend.logit_rows(planned.config.vocab_size),
                                 std::max<int64_t>(64, config.max_num_seqs), int64_t{config.max_num_batched_tokens}});
  planned.logit_floats = logit_floats(*model, backend, planned.logit_rows);

  plan_recordings(config, backend, planned);

  MemoryPlan& memory = planned.memory;
  memory.weight_bytes = loader.bytes();
  memory.converted_weights = loader.converted().to_string();
  memory.widened_weights = loader.widened().to_string();
  memory.quantization = loader.quantized().to_string();
  memory.activation_bytes = planned.workspace_floats * static_cast<int64_t>(sizeof(float));
  memory.max_num_batched_tokens = config.max_num_batched_tokens;
  memory.workspace_bytes = workspace_bytes(config, planned, backend);
  memory.block_size = config.block_size;
  QUIRE_ASSIGN_OR_RETURN(planned.kv_layout, make_kv_layout(model->kv_layers(planned.kv_dtype), config.block_size));
  const KvLayout& layout = planned.kv_layout;
  memory.kv_token_bytes = layout.token_bytes();
  memory.windows = layout.windows;
  memory.layers_per_block = *std::ranges::max_element(layout.layers_of_group);
  memory.block_bytes = layout.block_bytes;
  memory.max_model_len = planned.max_model_len;
  size_pools(config, backend, free_bytes, planned, memory);
  if (memory.num_blocks < 1) {
    return resource_exhausted(
        "no memory for a single KV block of {}: {} are free, the weights take {}, the workspace {}. Free some memory, "
        "or "
        "set --max-model-len and --max-num-batched-tokens lower, or --kv-cache-memory-bytes higher.",
        format_bytes(memory.block_bytes), format_bytes(free_bytes), format_bytes(memory.weight_bytes),
        format_bytes(memory.workspace_bytes));
  }
  return planned;
}

}  // namespace quire::runner
