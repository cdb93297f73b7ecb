#include "runner/memory_planner.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "checkpoint/quantization_config.h"
#include "ops/quantise.h"
#include "runner/device_sampler.h"
#include "runner/model_task.h"

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
  const int64_t num_outputs = num_head_outputs(model.config());
  if (num_outputs == 0) return workspace.most_used();
  const ops::View outputs = workspace.take(num_rows, num_outputs);
  const nn::StepContext step{.backend = backend, .batch = none, .workspace = workspace};
  if (model.config().pooling.num_labels > 0) {
    model.scores(step, rows, outputs);
  } else {
    model.logits(step, rows, outputs);
  }
  return workspace.most_used();
}

int64_t num_head_outputs(const ModelConfig& config) {
  if (config.task == ModelTask::kEmbed) return 0;
  return config.pooling.num_labels > 0 ? config.pooling.num_labels : config.vocab_size;
}

namespace {

// Memory behind the tensors of the largest step: the model's activations, the gathered rows and logits of one chunk,
// what sampling on the device takes, the flat batch itself, the kernels' scratch.
int64_t workspace_bytes(const EngineConfig& config, const PlannedModel& planned, ops::Backend& backend) {
  const int64_t tokens = planned.memory.max_num_batched_tokens;
  const int64_t block_size = planned.memory.block_size;
  const int64_t max_blocks = (planned.max_model_len + block_size - 1) / block_size;
  // Ids, where they come from, positions, slots; tables, and who shares what of them.
  const int64_t num_spans = backend.shares_spans() ? max_blocks * block_size / ops::kSharedSpan : 0;
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

// Narrower models' products are not what takes the time.
constexpr int64_t kLeastBfloat16Width = 256;

// Whether an encoder's products are of bfloat16, unless anything else was chosen: where the processor has them they
// take half the time, at a cosine of 0.9999 of the vectors (docs/embeddings.md).
bool computes_in_bfloat16(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint,
                          const PlannedModel& planned, ops::Backend& backend) {
  if (config.dtype != WeightDType::kAuto || planned.quantization != Quantization::kNone) return false;
  if (!planned.config.attends_both_ways || planned.config.hidden_size < kLeastBfloat16Width) return false;
  if (checkpoint.quantization() != nullptr) return false;
  // Older exporters write the numbers of the positions, too.
  const auto is_plain = [](const checkpoint::CheckpointTensor& tensor) {
    const DType dtype = tensor.view.dtype;
    return tensor.view.shape.rank() < 2 || ops::can_be_quantised(dtype) || dtype == DType::kI64;
  };
  return std::ranges::all_of(checkpoint.tensors(), is_plain) && backend.round_bfloat16_inputs();
}

// What weights are rounded to: a choice that names what they are stored in is checked and rounds nothing.
Result<Quantization> rounding_of(Quantization choice, const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::QuantizationConfig* stored = checkpoint.quantization();
  const bool is_stored = stored != nullptr && checkpoint::name(stored->method) == name(choice);
  switch (choice) {
    case Quantization::kNone:
    case Quantization::kInt8:
    case Quantization::kInt4:
      return choice;
    case Quantization::kFp8:
      return is_stored ? Quantization::kNone : choice;
    default:
      break;
  }
  if (is_stored) return Quantization::kNone;
  return invalid_argument(
      "--quantization {}: the checkpoint's weights are {}; leave --quantization out, a checkpoint says itself what it "
      "is{}",
      name(choice), stored == nullptr ? "not stored so" : checkpoint::name(stored->method),
      stored == nullptr ? ", or give int8, int4 or fp8, which round weights of 16 and 32 bits" : "");
}

// On a CPU a prompt's tokens are bound by arithmetic in small steps already, and a larger one only keeps everybody in
// it waiting for the first token of the last; a card wants rows enough to fill it (docs/design.md, section 3).
int64_t tokens_of_a_step(const EngineConfig& config, const PlannedModel& planned, ops::Backend& backend) {
  const int64_t suits = backend.computes_in_host_memory() ? 512 : 2048;
  const int64_t tokens = config.max_num_batched_tokens > 0 ? config.max_num_batched_tokens : suits;
  // A text that is computed whole must fit.
  const bool uncut = config.max_num_batched_tokens == 0 && !config.enable_chunked_prefill;
  const bool whole = planned.config.attends_both_ways || uncut;
  return whole ? std::max(tokens, planned.max_model_len) : tokens;
}

void plan_recordings(const EngineConfig& config, const ops::Backend& backend, PlannedModel& planned) {
  if (config.enforce_eager || !backend.can_record()) return;
  if (planned.config.task != ModelTask::kGenerate) return;  // steps of whole texts
  // Which of two tables rotates a sequence is decided step by step, by the host.
  if (planned.config.rope.scaling == RopeScaling::kLongRope) return;
  // A step that is recorded runs once more, and made-up sequences fill its shape: neither may change a state.
  if (!planned.config.recurrent_layers.empty()) return;
  // Steps of more tokens take a card longer than its host needs to call their kernels.
  constexpr int32_t kMostTokens = 512;
  const int32_t most = config.max_cudagraph_capture_size > 0 ? config.max_cudagraph_capture_size : kMostTokens;
  planned.most_recorded_tokens = std::min(most, static_cast<int32_t>(planned.memory.max_num_batched_tokens));
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

std::optional<DType> adapter_dtype_of(LoraDType choice) {
  switch (choice) {
    case LoraDType::kAuto:
      break;
    case LoraDType::kFloat32:
      return DType::kF32;
    case LoraDType::kFloat16:
      return DType::kF16;
    case LoraDType::kBFloat16:
      return DType::kBF16;
  }
  return std::nullopt;
}

// Room for so many adapters of all products, of the largest rank.
Status plan_adapters(const EngineConfig& config, const nn::Loader& loader, ops::Backend& backend,
                     PlannedModel& planned) {
  const nn::AdaptableLayers& layers = loader.adaptable_layers();
  if (!config.enable_lora && !config.enable_prompt_adapter) return {};
  if (!backend.has_low_rank()) {
    return unimplemented("enable_lora, enable_prompt_adapter: adapters are not computed on this device ({})",
                         backend.description());
  }
  int64_t hidden = 0;  // of a token's embedding
  for (const auto& layer : layers) {
    if (hidden == 0 && layer->kind == nn::AdaptableLayer::Kind::kEmbedding) hidden = layer->out_features;
  }
  const bool in_table = !backend.computes_in_host_memory();
  planned.adapter_dtype = adapter_dtype_of(config.lora_dtype);
  if (config.enable_lora) {
    planned.max_adapter_rank = config.max_lora_rank;
    planned.adapters.most_loaded = std::max(config.max_cpu_loras, config.max_loras);
    planned.adapters.most_bytes = planned.adapters.most_loaded *
                                  Adapter::most_bytes(layers, config.max_lora_rank, planned.adapter_dtype, in_table);
  }
  if (config.enable_prompt_adapter) {
    planned.max_virtual_tokens = config.max_prompt_adapter_token;
    planned.adapters.most_loaded += config.max_prompt_adapters;
    // Embeddings, or keys and values of all layers that this rank has.
    const ModelConfig& model = planned.config;
    const int64_t kv_heads = loader.kv_heads() ? loader.kv_heads()->count : model.num_kv_heads;
    const int64_t keys = 2 * nn::layers_of(planned.stage, model.num_layers).count * kv_heads * model.head_dim;
    planned.adapters.most_bytes +=
        config.max_prompt_adapters *
        (config.max_prompt_adapter_token * std::max(hidden, keys) * int64_t{sizeof(float)} +
         (in_table ? Adapter::most_bytes(layers, /*rank=*/0, planned.adapter_dtype, in_table) : 0));
  }
  std::error_code error;
  if (!config.lora_dir.empty() && !std::filesystem::is_directory(config.lora_dir, error)) {
    return not_found("lora_dir: {:?} is no folder", config.lora_dir);
  }
  planned.adapters.folder = config.lora_dir;
  planned.memory.num_adapters = planned.adapters.most_loaded;
  planned.memory.adapter_bytes = planned.adapters.most_bytes;
  return {};
}

// A pool of a given size is taken as it is, and its pages as they are first used: what is too much is felt when it
// fills.
void warn_of_too_large_pool(ops::Backend& backend, int64_t free_bytes, const MemoryPlan& memory) {
  const int64_t others = memory.weight_bytes + memory.workspace_bytes + memory.adapter_bytes;
  if (!backend.computes_in_host_memory() || free_bytes <= 0 || memory.kv_bytes + others <= free_bytes) return;
  log_warning(
      "the KV pool may grow to {} beside {} of weights and workspace, and {} of memory are free: the process may be "
      "ended when it fills. Set --kv-cache-memory-bytes or --num-gpu-blocks-override lower",
      format_bytes(memory.kv_bytes), format_bytes(others), format_bytes(free_bytes));
}

// How many blocks there are room for, in both pools.
void size_pools(const EngineConfig& config, ops::Backend& backend, int64_t free_bytes, const PlannedModel& planned,
                MemoryPlan& memory) {
  if (planned.config.attends_both_ways) {
    // What a step writes, it reads, and nobody after it: room for the texts of one step, and of those planned ahead.
    const int64_t tokens = memory.max_num_batched_tokens + config.max_num_seqs * int64_t{memory.block_size - 1};
    const int64_t steps = config.max_plans_in_flight();
    const auto blocks = static_cast<double>(steps * (tokens / memory.block_size + 1));
    memory.num_blocks = static_cast<int64_t>(blocks / (1 - config.watermark)) + 2;
    memory.kv_bytes = memory.num_blocks * memory.block_bytes;
    return;
  }
  constexpr double kGib = 1 << 30;
  memory.num_swap_blocks = static_cast<int64_t>(config.swap_space * kGib) / memory.block_bytes;
  if (config.offloads_kv()) {
    const double size = config.kv_offloading_size > 0 ? config.kv_offloading_size : 1;
    memory.num_offload_slots =
        std::clamp<int64_t>(static_cast<int64_t>(size * kGib) / memory.block_bytes, 1, (int64_t{1} << 31) - 1);
    memory.offload_to_disk = !config.kv_offload_dir.empty();
  }
  if (config.num_gpu_blocks_override > 0) {
    memory.num_blocks = config.num_gpu_blocks_override;
  } else if (config.kv_cache_memory_bytes > 0) {
    memory.num_blocks = config.kv_cache_memory_bytes / memory.block_bytes;
  } else {
    // A file is not this memory, nor is the host's where the device has its own.
    const bool swaps_here = config.swap_file.empty() && backend.computes_in_host_memory();
    const int64_t swap_bytes = swaps_here ? memory.swap_bytes() : 0;
    const double share = memory_utilization(config, backend);
    const int64_t offload_bytes = backend.computes_in_host_memory() ? memory.offload_bytes() : 0;
    const int64_t fixed =
        memory.weight_bytes + memory.workspace_bytes + memory.adapter_bytes + swap_bytes + offload_bytes;
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
  warn_of_too_large_pool(backend, free_bytes, memory);
}

Status lay_out_cache(const models::Model& model, const std::vector<nn::KvLayerSpec>& uncut, PlannedModel& planned) {
  std::vector<nn::KvLayerSpec> layers = kv_layers_of(model, planned);
  std::optional<nn::Range> held;
  if (planned.stage.count > 1) {
    held = model.caches_of(nn::layers_of(planned.stage, planned.config.num_layers));
    if (!held) {
      return unimplemented("pipeline_parallel_size {}: encoders are computed in one stage", planned.stage.count);
    }
    if (held->count == 0) {
      return unimplemented(
          "pipeline_parallel_size {}: stage {} would have layers without a cache alone; give fewer stages",
          planned.stage.count, planned.stage.index);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(planned.kv_layout, make_kv_layout(std::move(layers), planned.memory.block_size, held, uncut));
  return {};
}

// What weights and the cache are held in, as far as the configuration and the files say it.
Status plan_formats(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, PlannedModel& planned) {
  planned.kv_dtype = kv_dtype_of(config.kv_cache_dtype);
  QUIRE_ASSIGN_OR_RETURN(planned.quantization, rounding_of(config.quantization, checkpoint));
  planned.weight_dtype = nn::wanted_dtype(config.dtype);
  if (config.kv_cache_dtype == KvCacheDType::kAuto && !wants_floats(config, checkpoint, planned)) {
    planned.kv_dtype = DType::kF16;
  }
  return {};
}

// What the model is and what it is served for, and what of that asks for other formats.
Status plan_task(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                 PlannedModel& planned) {
  QUIRE_ASSIGN_OR_RETURN(planned.config, models::read_model_config(planned.family, checkpoint));
  QUIRE_RETURN_IF_ERROR(choose_task(config, checkpoint, planned.family.role, planned.config));
  planned.tells_second_text = tells_segments(checkpoint);
  if (computes_in_bfloat16(config, checkpoint, planned, backend)) planned.weight_dtype = DType::kBF16;
  if (planned.config.task == ModelTask::kEmbed) {
    PoolingConfig& pooling = planned.config.pooling;
    pooling.vector_size = planned.config.hidden_size * static_cast<int64_t>(pooling.types.size());
    QUIRE_ASSIGN_OR_RETURN(planned.after_pooling,
                           DenseLayers::make(checkpoint.sentence_files().dense, pooling.vector_size));
    if (planned.after_pooling != nullptr) pooling.vector_size = planned.after_pooling->out_features();
  }
  planned.memory.most_state_drafts =
      planned.config.recurrent_layers.empty() ? 0 : most_state_drafts(config.speculative_config);
  if (planned.config.attends_both_ways && config.offloads_kv()) {
    return invalid_argument("{}: this model's texts share no beginnings, for what comes later is seen: leave it out",
                            config.kv_offload_dir.empty() ? "kv_offloading_size" : "kv_offload_dir");
  }
  if (planned.config.attends_both_ways && config.kv_cache_dtype == KvCacheDType::kAuto) planned.kv_dtype = DType::kF32;
  return {};
}

// For people: what weights are stored in and what they become.
std::string describe_dtype(const checkpoint::Checkpoint& checkpoint, const PlannedModel& planned) {
  std::string dtype = checkpoint.describe_weights();
  if (planned.weight_dtype && dtype != name(*planned.weight_dtype)) {
    dtype += fmt::format(" to {}", name(*planned.weight_dtype));
  }
  if (planned.quantization != Quantization::kNone) dtype += fmt::format(" to {}", name(planned.quantization));
  return dtype;
}

Status plan_lengths(const EngineConfig& config, PlannedModel& planned) {
  if (config.max_model_len < 0 || config.max_model_len > planned.config.max_position) {
    const bool dynamic = planned.config.rope.scaling == RopeScaling::kDynamic;
    return invalid_argument(
        "max_model_len is {}, but the model was made for at most {} tokens of context{}", config.max_model_len,
        planned.config.max_position,
        dynamic ? ", and its rope scaling \"dynamic\" turns every cached key anew for each token beyond "
                  "them, which is not supported: give it \"yarn\" or \"linear\""
                : "");
  }
  const int64_t usual =
      planned.config.default_context > 0 ? planned.config.default_context : planned.config.max_position;
  planned.max_model_len = config.max_model_len > 0 ? config.max_model_len : usual;
  planned.max_num_seqs = config.max_num_seqs;
  return {};
}

// Which part of the model this rank computes.
Status plan_part(const EngineConfig& config, PlannedModel& planned) {
  if (config.enable_expert_parallel && planned.config.moe.num_experts == 0) {
    return invalid_argument("enable_expert_parallel: the model has no experts: leave it out");
  }
  planned.shard = {.rank = config.rank % config.tensor_parallel_size,
                   .size = config.tensor_parallel_size,
                   .whole_experts = config.enable_expert_parallel};
  planned.stage = {.index = config.rank / config.tensor_parallel_size, .count = config.pipeline_parallel_size};
  return {};
}

// The buffers of the largest step.
void plan_workspace(const EngineConfig& config, const models::Model& model, ops::Backend& backend,
                    PlannedModel& planned) {
  MemoryPlan& memory = planned.memory;
  memory.max_num_batched_tokens = tokens_of_a_step(config, planned, backend);
  planned.workspace_floats = activation_floats(model, backend, memory.max_num_batched_tokens);
  // One for each sequence, and with the log-probabilities of prompts one for each token.
  planned.logit_rows = std::min({backend.logit_rows(std::max<int64_t>(num_head_outputs(planned.config), 1)),
                                 std::max<int64_t>(64, config.max_num_seqs), memory.max_num_batched_tokens});
  planned.logit_floats = logit_floats(model, backend, planned.logit_rows);
  memory.activation_bytes = planned.workspace_floats * static_cast<int64_t>(sizeof(float));
  plan_recordings(config, backend, planned);
  memory.workspace_bytes = workspace_bytes(config, planned, backend);
}

void note_weights(const nn::Loader& loader, PlannedModel& planned) {
  MemoryPlan& memory = planned.memory;
  memory.weight_bytes = loader.bytes() + (planned.after_pooling != nullptr ? planned.after_pooling->bytes() : 0);
  memory.converted_weights = loader.converted().to_string();
  memory.widened_weights = loader.widened().to_string();
  memory.quantization = loader.quantized().to_string();
}

// Of models with recurrent layers what they keep where it is not cut: the tokens of a block and the groups of layers
// follow from it, which must be the same in all ranks. Of others nothing.
Result<std::vector<nn::KvLayerSpec>> uncut_layers(const models::Model& model, const checkpoint::Checkpoint& checkpoint,
                                                  ops::Backend& backend, const PlannedModel& planned) {
  if (planned.config.recurrent_layers.empty()) return std::vector<nn::KvLayerSpec>();
  if (planned.shard.is_whole()) return kv_layers_of(model, planned);
  nn::Loader loader(nn::Loader::Mode::kPlan, checkpoint, backend, planned.quantization, planned.weight_dtype);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<models::Model> whole,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  return kv_layers_of(*whole, planned);
}

// The cache's blocks, and how many there are: what is left for them.
Status plan_cache(const EngineConfig& config, const models::Model& model, const std::vector<nn::KvLayerSpec>& uncut,
                  ops::Backend& backend, int64_t free_bytes, PlannedModel& planned) {
  MemoryPlan& memory = planned.memory;
  QUIRE_RETURN_IF_ERROR(lay_out_cache(model, uncut, planned));
  const KvLayout& layout = planned.kv_layout;
  memory.kv_token_bytes = layout.token_bytes();
  memory.windows = layout.windows;
  memory.keeps_states = layout.keeps_states;
  memory.layers_per_block = *std::ranges::max_element(layout.layers_of_group);
  memory.block_bytes = layout.block_bytes;
  memory.max_model_len = planned.max_model_len;
  size_pools(config, backend, free_bytes, planned, memory);
  if (memory.num_blocks >= 1) return {};
  return resource_exhausted(
      "no memory for a single KV block of {}: {} are free, the weights take {}, the workspace {}{}. Free some "
      "memory, or set --max-model-len and --max-num-batched-tokens lower, or --kv-cache-memory-bytes higher.",
      format_bytes(memory.block_bytes), format_bytes(free_bytes), format_bytes(memory.weight_bytes),
      format_bytes(memory.workspace_bytes),
      memory.num_adapters == 0
          ? ""
          : fmt::format(", {} adapters {} (--max-cpu-loras)", memory.num_adapters, format_bytes(memory.adapter_bytes)));
}

}  // namespace

std::vector<nn::KvLayerSpec> kv_layers_of(const models::Model& model, const PlannedModel& planned) {
  std::vector<nn::KvLayerSpec> layers = model.kv_layers(planned.kv_dtype);
  for (nn::KvLayerSpec& layer : layers) {
    if (layer.kind == nn::KvKind::kState) layer.most_drafts = planned.memory.most_state_drafts;
  }
  return layers;
}

Result<PlannedModel> plan_model(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint,
                                ops::Backend& backend, int64_t free_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const models::Family family, models::find_family(checkpoint));
  return plan_model(family, config, checkpoint, backend, free_bytes);
}

Result<PlannedModel> plan_model(const models::Family& family, const EngineConfig& config,
                                const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, int64_t free_bytes) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  PlannedModel planned;
  planned.family = family;
  planned.swap_folder = config.swap_file;
  planned.acceptance = config.speculative_config.acceptance;
  QUIRE_RETURN_IF_ERROR(plan_formats(config, checkpoint, planned));
  QUIRE_RETURN_IF_ERROR(plan_task(config, checkpoint, backend, planned));
  planned.config.dtype = describe_dtype(checkpoint, planned);
  QUIRE_RETURN_IF_ERROR(plan_lengths(config, planned));
  QUIRE_RETURN_IF_ERROR(plan_part(config, planned));
  nn::Loader loader(nn::Loader::Mode::kPlan, checkpoint, backend, planned.quantization, planned.weight_dtype,
                    planned.shard, planned.stage);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<models::Model> model,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<nn::KvLayerSpec> uncut, uncut_layers(*model, checkpoint, backend, planned));
  planned.memory.block_size = uncut.empty() ? config.block_size : block_size_for(uncut, config.block_size);
  plan_workspace(config, *model, backend, planned);
  QUIRE_RETURN_IF_ERROR(plan_adapters(config, loader, backend, planned));
  note_weights(loader, planned);
  QUIRE_RETURN_IF_ERROR(plan_cache(config, *model, uncut, backend, free_bytes, planned));
  return planned;
}

}  // namespace quire::runner
