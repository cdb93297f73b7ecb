#include "checkpoint/adapter_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/hashing.h"
#include "checkpoint/directory_files.h"
#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/json_file.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/text_quote.h"
#include "checkpoint/whole_file.h"

namespace quire::checkpoint {
namespace {

constexpr size_t kMostConfigBytes = size_t{16} << 20;
constexpr size_t kMostWeightBytes = size_t{8} << 30;
constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kWeightFile = "adapter_model.safetensors";
constexpr std::string_view kWrapper = "base_model.model.";

uint64_t hash_of(std::span<const std::byte> bytes, uint64_t seed) {
  return hash_bytes(bytes.data(), bytes.size(), seed);
}

// The two factors of a module while they are being gathered.
struct FoundFactors {
  const TensorView* down = nullptr;
  const TensorView* up = nullptr;
  const TensorView* lengths = nullptr;
  bool embeds = false;
};
using FactorsByModule = std::map<std::string, FoundFactors, std::less<>>;

Status add_factor(FoundFactors& found, bool is_down, const TensorView& view, bool embeds, std::string_view name) {
  const TensorView*& place = is_down ? found.down : found.up;
  if (place != nullptr) return data_loss("{}: the module has another tensor for the same factor", in_quotes(name));
  if (view.shape.rank() != 2 || view.shape[0] == 0 || view.shape[1] == 0) {
    return data_loss("{} is {}, expected two dimensions over 0", in_quotes(name), view.shape.to_string());
  }
  place = &view;
  found.embeds = found.embeds || embeds;
  return {};
}

Status add_pairs(const FactorsByModule& factors, AdapterFile& out) {
  for (const auto& [module, found] : factors) {
    if (found.down == nullptr || found.up == nullptr) {
      return data_loss("module {} has its {} factor (lora_{}) alone", in_quotes(module),
                       found.down != nullptr ? "first" : "second", found.down != nullptr ? "A" : "B");
    }
    out.low_rank.push_back({.module = module,
                            .down = *found.down,
                            .up = *found.up,
                            .lengths = found.lengths != nullptr ? *found.lengths : TensorView{},
                            .embeds = found.embeds});
  }
  return {};
}

Status add_lengths(FoundFactors& found, const TensorView& view, std::string_view name) {
  if (found.lengths != nullptr) return data_loss("{}: the module has such a tensor already", in_quotes(name));
  if (view.shape.rank() != 1 || view.shape[0] == 0) {
    return data_loss("{} is {}, expected one dimension over 0", in_quotes(name), view.shape.to_string());
  }
  found.lengths = &view;
  return {};
}

// Rows of tokens, in the order in which the configuration has these.
Status add_tokens(std::string_view module, const SafetensorsTensor& tensor, AdapterFile& out) {
  const std::vector<int32_t>* ids = out.peft->tokens_of(module);
  if (ids == nullptr) {
    return data_loss("tensor {} is of no module that trainable_token_indices names", in_quotes(tensor.name));
  }
  const Shape& shape = tensor.view.shape;
  if (shape.rank() != 2 || shape[0] != std::ssize(*ids)) {
    return data_loss("{} is {}, expected {} rows (trainable_token_indices)", in_quotes(tensor.name), shape.to_string(),
                     ids->size());
  }
  out.saved.push_back({std::string(module), tensor.view, *ids});
  return {};
}

struct Ending {
  std::string_view text;
  bool is_down;
  bool embeds;
};
constexpr Ending kEndings[] = {{".lora_A.weight", true, false},
                               {".lora_B.weight", false, false},
                               {".lora_embedding_A", true, true},
                               {".lora_embedding_B", false, true}};

Status add_peft_tensor(const SafetensorsTensor& tensor, FactorsByModule& factors, AdapterFile& out) {
  std::string_view name = tensor.name;
  if (!name.starts_with(kWrapper)) {
    return data_loss("tensor {}: expected a name that begins with {:?}", in_quotes(name), kWrapper);
  }
  name.remove_prefix(kWrapper.size());
  for (const Ending& ending : kEndings) {
    if (!name.ends_with(ending.text)) continue;
    const std::string module(name.substr(0, name.size() - ending.text.size()));
    return add_factor(factors[module], ending.is_down, tensor.view, ending.embeds, tensor.name);
  }
  for (const std::string_view ending : {".lora_magnitude_vector", ".lora_magnitude_vector.weight"}) {
    if (!name.ends_with(ending)) continue;
    return add_lengths(factors[std::string(name.substr(0, name.size() - ending.size()))], tensor.view, tensor.name);
  }
  if (name.ends_with(".lora_A.bias") || name.ends_with(".lora_B.bias")) {
    return unimplemented("tensor {}: biases of the factors (lora_bias) are not built", in_quotes(name));
  }
  constexpr std::string_view kBase = ".base_layer.weight";
  if (name.ends_with(kBase)) {
    out.base_copies.push_back({std::string(name.substr(0, name.size() - kBase.size())), tensor.view});
    return {};
  }
  constexpr std::string_view kTokens = ".token_adapter.trainable_tokens_delta";
  if (name.ends_with(kTokens)) return add_tokens(name.substr(0, name.size() - kTokens.size()), tensor, out);
  constexpr std::string_view kWeight = ".weight";
  const std::string_view module = name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
  if (name.ends_with(kWeight) && out.peft->saves(module)) {
    out.saved.push_back({std::string(module), tensor.view});
    return {};
  }
  constexpr std::string_view kBias = ".bias";
  if (name.ends_with(kBias) && out.peft->saves(name.substr(0, name.size() - kBias.size()))) {
    return unimplemented(
        "tensor {}: modules that are trained whole (modules_to_save) may be the embedding and the head",
        in_quotes(name));
  }
  return data_loss("tensor {} is neither a factor (lora_A, lora_B) nor of a module that modules_to_save names",
                   in_quotes(tensor.name));
}

Status check_lengths(const AdapterFile::LowRank& pair, bool decomposed) {
  const bool has = pair.lengths.data != nullptr;
  if (has != decomposed) {
    return data_loss("module {} has {} lora_magnitude_vector, and {} says use_dora: {}", in_quotes(pair.module),
                     has ? "a" : "no", kConfigFile, decomposed);
  }
  if (!has || pair.lengths.shape[0] == pair.up.shape[0]) return {};
  return data_loss("module {}: its lora_magnitude_vector has {} numbers, expected {}", in_quotes(pair.module),
                   pair.lengths.shape[0], pair.up.shape[0]);
}

// PEFT wraps a module once for each of its parameters that target_parameters names, in the order in which the class has
// them, and says in the tensors' names how deep a wrapper is and not which parameter it is for.
void name_stacks(AdapterFile& out) {
  constexpr std::string_view kInner = ".base_layer";
  for (AdapterFile::LowRank& pair : out.low_rank) {
    std::string_view module = pair.module;
    size_t depth = 0;
    for (; module.ends_with(kInner); ++depth) module.remove_suffix(kInner.size());
    if (!module.ends_with(".experts")) continue;
    std::vector<std::string> wrapped;
    for (const std::string_view name : {"gate_up_proj", "down_proj"}) {
      std::string parameter = fmt::format("{}.{}", module, name);
      if (out.peft->adapts_parameter(parameter)) wrapped.push_back(std::move(parameter));
    }
    if (depth >= wrapped.size()) continue;  // which is then no module that the model has
    pair.module = wrapped[wrapped.size() - 1 - depth];
    pair.num_stacked = 1;
  }
}

// Ranks and scales by the configuration, which the factors must agree with.
Status scale_factors(AdapterFile& out) {
  for (AdapterFile::LowRank& pair : out.low_rank) {
    // What target_parameters names has the parameter's name in patterns too.
    const std::string weight = pair.module + ".weight";
    const std::string& name = out.peft->adapts_parameter(weight) ? weight : pair.module;
    QUIRE_ASSIGN_OR_RETURN(const int64_t rank, out.peft->rank_of(name));
    QUIRE_ASSIGN_OR_RETURN(pair.scale, out.peft->scale_of(name));
    QUIRE_RETURN_IF_ERROR(check_lengths(pair, out.peft->decomposed));
    if (pair.num_stacked > 0) pair.num_stacked = std::max<int64_t>(pair.down.shape[0] / rank, 1);
    const int64_t all = rank * std::max<int64_t>(pair.num_stacked, 1);
    if (pair.down.shape[0] == all && pair.up.shape[1] == all) continue;
    return data_loss("module {}: its factors are {} and {}, expected rank {} by {}", in_quotes(pair.module),
                     pair.down.shape.to_string(), pair.up.shape.to_string(), rank, kConfigFile);
  }
  return {};
}

Status read_soft_prompt(const SafetensorsFile& file, AdapterFile& out) {
  if (file.tensors.size() != 1 || file.tensors[0].name != "prompt_embeddings") {
    return data_loss("{} tensors, the first {}, expected \"prompt_embeddings\" alone", file.tensors.size(),
                     file.tensors.empty() ? "missing" : in_quotes(file.tensors[0].name));
  }
  out.prompt = file.tensors[0].view;
  if (out.prompt.shape.rank() != 2 || out.prompt.shape[0] != out.peft->num_virtual_tokens) {
    return data_loss("prompt_embeddings is {}, expected {} rows (num_virtual_tokens)", out.prompt.shape.to_string(),
                     out.peft->num_virtual_tokens);
  }
  return {};
}

// What a GGUF adapter says of itself besides its tensors.
Status read_gguf_header(const GgufMetadata& metadata, AdapterFile& out, double& alpha) {
  QUIRE_ASSIGN_OR_RETURN(const auto type, metadata.text("general.type"));
  if (type != "adapter") {
    return invalid_argument("\"general.type\" is {}, expected \"adapter\"", type ? in_quotes(*type) : "missing");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto kind, metadata.text("adapter.type"));
  if (kind != "lora") {
    return unimplemented("\"adapter.type\" is {}, expected \"lora\"", kind ? in_quotes(*kind) : "missing");
  }
  if (metadata.has("adapter.alora.invocation_tokens")) {
    return unimplemented("the adapter uses activated LoRA (adapter.alora.invocation_tokens), which is not built");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto architecture, metadata.text("general.architecture"));
  if (!architecture) return data_loss("\"general.architecture\" is missing");
  out.architecture = *architecture;
  QUIRE_ASSIGN_OR_RETURN(const auto found_alpha, metadata.number("adapter.lora.alpha"));
  if (!found_alpha) return data_loss("\"adapter.lora.alpha\" is missing");
  alpha = *found_alpha;
  if (!(alpha >= 0) || alpha > 1e30)
    return invalid_argument("\"adapter.lora.alpha\" is {}, expected a number from 0", alpha);
  if (const auto base = metadata.text("general.base_model.0.name"); base.ok() && *base) out.base_model = **base;
  return {};
}

}  // namespace

Result<std::shared_ptr<const AdapterFile>> AdapterFile::from_peft(std::string_view config,
                                                                  std::span<const std::byte> weights,
                                                                  std::shared_ptr<const void> memory) {
  auto out = std::make_shared<AdapterFile>();
  auto object = parse_json_object(config, {});
  auto peft = object.ok() ? read_peft_config(*object) : Result<PeftConfig>(object.status());
  if (!peft.ok()) return peft.status().with_prefix(fmt::format("{}: ", kConfigFile));
  out->peft = std::move(*peft);
  out->kind = out->peft->kind;
  out->base_model = out->peft->base_model;
  out->bytes = config.size() + weights.size();
  out->revision = hash_of(weights, hash_bytes(config.data(), config.size(), 0));
  const std::string where = fmt::format("{}: ", kWeightFile);
  auto file = SafetensorsFile::parse(weights);
  if (!file.ok()) return file.status().with_prefix(where);
  Status status;
  if (out->kind != AdapterKind::kLowRank) {
    status = read_soft_prompt(*file, *out);
  } else {
    FactorsByModule factors;
    for (const SafetensorsTensor& tensor : file->tensors) {
      status = add_peft_tensor(tensor, factors, *out);
      if (!status.ok()) break;
    }
    if (status.ok()) status = add_pairs(factors, *out);
    if (status.ok()) name_stacks(*out);
    if (status.ok()) status = scale_factors(*out);
  }
  if (!status.ok()) return std::move(status).with_prefix(where);
  // Tensors that the file places askew are copies of the parser's.
  auto copies = std::make_shared<std::vector<std::unique_ptr<std::byte[]>>>(std::move(file->copies));
  out->memory = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(memory), std::move(copies));
  return std::shared_ptr<const AdapterFile>(std::move(out));
}

Result<std::shared_ptr<const AdapterFile>> AdapterFile::from_gguf(std::span<const std::byte> bytes,
                                                                  std::shared_ptr<const void> memory) {
  auto out = std::make_shared<AdapterFile>();
  QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(bytes));
  double alpha = 0;
  QUIRE_RETURN_IF_ERROR(read_gguf_header(file.metadata, *out, alpha));
  const GgufArchitecture* names = find_gguf_architecture(out->architecture);
  if (names == nullptr) {
    return unimplemented("\"general.architecture\" is {}, which is none that is known here",
                         in_quotes(out->architecture));
  }
  out->rotates_neighbours = out->architecture == "llama" || out->architecture == "granite";
  FactorsByModule factors;
  for (const GgufTensor& tensor : file.tensors) {
    const bool is_down = tensor.name.ends_with(".lora_a");
    if (!is_down && !tensor.name.ends_with(".lora_b")) {
      return data_loss("tensor {} is no factor: expected a name that ends with .lora_a or .lora_b",
                       in_quotes(tensor.name));
    }
    const std::string_view stored = tensor.name.substr(0, tensor.name.size() - std::string_view(".lora_a").size());
    const bool embeds = stored == "token_embd.weight";
    const std::string name = hugging_face_name(*names, stored);
    if (name == stored || !name.ends_with(".weight")) {
      return data_loss("tensor {} is of no weight that a model of {} has", in_quotes(tensor.name),
                       in_quotes(out->architecture));
    }
    const std::string module = name.substr(0, name.size() - std::string_view(".weight").size());
    QUIRE_RETURN_IF_ERROR(add_factor(factors[module], is_down, tensor.view, embeds, tensor.name));
  }
  QUIRE_RETURN_IF_ERROR(add_pairs(factors, *out));
  for (LowRank& pair : out->low_rank) {
    pair.down_transposed = pair.embeds;
    const int64_t rank = pair.down.shape[pair.down_transposed ? 1 : 0];
    if (pair.up.shape[1] != rank) {
      return data_loss("module {}: its factors are {} and {}, which have no rank in common", in_quotes(pair.module),
                       pair.down.shape.to_string(), pair.up.shape.to_string());
    }
    pair.scale = alpha == 0 ? 1.0 : alpha / static_cast<double>(rank);
  }
  if (out->low_rank.empty()) return data_loss("the file has no tensors");
  out->bytes = bytes.size();
  out->revision = hash_of(bytes, 0);
  out->memory = std::move(memory);
  return std::shared_ptr<const AdapterFile>(std::move(out));
}

Result<std::shared_ptr<const AdapterFile>> AdapterFile::open(const std::filesystem::path& path,
                                                             std::shared_ptr<Allocator> allocator) {
  const std::string where = path.string() + ": ";
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (is_pickle_name(path)) return pickle_refused(path);
    QUIRE_ASSIGN_OR_RETURN(const auto file, WholeFile::read(path, kMostWeightBytes, std::move(allocator)));
    auto adapter = from_gguf(file->bytes(), file);
    if (!adapter.ok()) return adapter.status().with_prefix(where);
    return adapter;
  }
  QUIRE_ASSIGN_OR_RETURN(const ModelDirectory directory, ModelDirectory::open(path));
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path config_path, directory.resolve(kConfigFile));
  if (!directory.has(kWeightFile)) {
    for (const std::string& name : directory.names()) {
      if (is_pickle_name(name)) return pickle_refused(path / name);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path weight_path, directory.resolve(kWeightFile));
  QUIRE_ASSIGN_OR_RETURN(const auto config, WholeFile::read(config_path, kMostConfigBytes));
  QUIRE_ASSIGN_OR_RETURN(const auto weights, WholeFile::read(weight_path, kMostWeightBytes, std::move(allocator)));
  const std::string_view text(reinterpret_cast<const char*>(config->bytes().data()), config->bytes().size());
  auto adapter = from_peft(text, weights->bytes(), weights);
  if (!adapter.ok()) return adapter.status().with_prefix(where);
  return adapter;
}

}  // namespace quire::checkpoint
