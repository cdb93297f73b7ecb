#include "runner/adapter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/host_memory.h"
#include "base/log.h"
#include "checkpoint/text_quote.h"
#include "runner/adapter_lengths.h"
#include "runner/adapter_modules.h"
#include "runner/adapter_numbers.h"
#include "runner/adapter_split.h"

namespace quire::runner {
namespace {

using checkpoint::AdapterFile;
using checkpoint::in_quotes;
using nn::AdaptableLayer;

constexpr int64_t aligned_to_line(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Of DoRA's gains, and of its shifts.
constexpr int64_t gain_bytes(int64_t size) {
  return aligned_to_line(size * int64_t{sizeof(float)});
}

// Families whose table of tokens is what is multiplied by the scale, and not whatever stands in the tokens' place.
bool scales_tokens_alone(const ModelConfig& config) {
  return config.architecture == "Gemma2ForCausalLM" || config.architecture == "Gemma3ForCausalLM";
}

Status trained_whole(const std::string& module) {
  return unimplemented("module {} is trained whole (modules_to_save): expected the embedding or the head",
                       in_quotes(module));
}

Status not_numbers(const std::string& module) {
  return data_loss("module {}: its factors have values that are no finite numbers", in_quotes(module));
}

}  // namespace

bool rotates_neighbours(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config) {
  // Of the families that are stored so in GGUF alone; others have neighbours in either format.
  static constexpr std::string_view kTurned[] = {"LlamaForCausalLM", "MixtralForCausalLM", "GraniteForCausalLM"};
  return checkpoint.format() == checkpoint::Format::kGguf && config.rope.interleaved &&
         std::ranges::find(kTurned, config.architecture) != std::end(kTurned);
}

// Gathers what goes where, then takes the memory at once, then fills it.
class AdapterMaker {
 public:
  AdapterMaker(const AdapterFile& file, const AdapterHost& host, ops::Backend& backend)
      : file_(file), host_(host), backend_(backend), names_(host.layers) {}

  Result<std::shared_ptr<Adapter>> make() {
    if (file_.kind != checkpoint::AdapterKind::kLowRank) {
      if (host_.max_virtual_tokens == 0)
        return unimplemented("the adapter is a soft prompt, which is off: start with --enable-prompt-adapter");
      QUIRE_RETURN_IF_ERROR(file_.kind == checkpoint::AdapterKind::kPromptTuning ? make_prompt() : make_prefix());
      adapter_->num_virtual_tokens_ = static_cast<int32_t>(file_.prompt.shape[0]);
      adapter_->revision_ = file_.revision;
      tell_layers();
      return std::move(adapter_);
    }
    if (host_.max_rank == 0) return unimplemented("the adapter is LoRA, which is off: start with --enable-lora");
    QUIRE_RETURN_IF_ERROR(check_multipliers(file_, host_.config, host_.base));
    QUIRE_RETURN_IF_ERROR(gather());
    choose_dtype();
    QUIRE_RETURN_IF_ERROR(take_memory());
    QUIRE_RETURN_IF_ERROR(fill());
    adapter_->rank_ = static_cast<int32_t>(largest_rank_);
    adapter_->revision_ = file_.revision;
    tell_layers();
    return std::move(adapter_);
  }

 private:
  void begin_adapter() {
    adapter_.reset(new Adapter);
    adapter_->layers_.resize(host_.layers.size());
  }

  // The memory of all of it: where the device has its own, an image of that.
  Status take_bytes(int64_t bytes) {
    if (backend_.computes_in_host_memory()) {
      // Some of nothing too, for its memory is its place: of a stage that has none of the adapter's modules.
      bytes = std::max<int64_t>(bytes, 64);
      adapter_->allocator_ = host_.allocator;
      adapter_->memory_ =
          Buffer(host_.allocator == nullptr ? backend_.allocator() : *host_.allocator, static_cast<size_t>(bytes));
      if (adapter_->memory_.data() == nullptr) return resource_exhausted("no memory for the adapter's {} bytes", bytes);
      memory_ = adapter_->memory_.as<uint8_t>();
      prefer_large_pages(memory_, static_cast<size_t>(bytes));  // every step reads all of it
      std::memset(memory_, 0, static_cast<size_t>(bytes));
      return {};
    }
    for (const auto& layer : host_.layers) adapter_->first_entries_.push_back(layer->entry);
    adapter_->first_entries_.push_back(
        host_.layers.empty() ? 0 : host_.layers.back()->entry + host_.layers.back()->num_experts);
    adapter_->table_begin_ = static_cast<size_t>(aligned_to_line(bytes));
    adapter_->image_.resize(adapter_->table_begin_ + static_cast<size_t>(adapter_->table_bytes()));
    memory_ = adapter_->image_.data();
    return {};
  }

  void tell_layers() {
    std::vector<uint64_t>& bits = adapter_->adapted_layers_;
    bits.resize(host_.layers.size() / 64 + 1);
    for (const AdaptableLayer* layer : adapted_) {
      const auto index = static_cast<size_t>(layer->index);
      bits[index / 64] |= uint64_t{1} << index % 64;
    }
  }

  // Room for so many bytes, of tokens whose ids count from 0 below the vocabulary's.
  Status take_prompt_memory(int64_t vocabulary, int64_t bytes) {
    const int64_t tokens = file_.prompt.shape[0];
    if (tokens > host_.max_virtual_tokens || tokens > vocabulary) {
      return invalid_argument(
          "the soft prompt has {} tokens, over the limit of {}: start with --max-prompt-adapter-token {}", tokens,
          host_.max_virtual_tokens, tokens);
    }
    begin_adapter();
    return take_bytes(bytes);
  }

  Status check_prompt_width(int64_t columns) const {
    const TensorView& prompt = file_.prompt;
    if (prompt.shape[1] == columns && ops::is_row_format(prompt.dtype)) return {};
    return invalid_argument(
        "prompt_embeddings is {} of {}, expected {} columns of F32, F16 or BF16 in this model: is the adapter of "
        "another one?",
        prompt.shape.to_string(), name(prompt.dtype), columns);
  }

  const AdaptableLayer& token_embedding() const {
    const auto embeds = [](const auto& layer) { return layer->kind == AdaptableLayer::Kind::kEmbedding; };
    const auto layer = std::ranges::find_if(host_.layers, embeds);
    QUIRE_CHECK_MSG(layer != host_.layers.end(), "a model without an embedding");
    return **layer;
  }

  // Prompt tuning (Lester et al., 2021): embeddings in the place of tokens'.
  Status make_prompt() {
    const auto* gemma = std::get_if<Gemma4Config>(&host_.config.family);
    if (gemma != nullptr && gemma->layer_input_size > 0)
      return unimplemented("the adapter is a soft prompt, which is not built for models with inputs of each layer");
    // Falcon-H1's reference multiplies no embedding beside given ones.
    if (std::holds_alternative<FalconH1Config>(host_.config.family) && host_.config.embedding_scale != 1)
      return unimplemented("the adapter is a soft prompt, which is not built beside an embedding_multiplier");
    const AdaptableLayer& embedding = token_embedding();
    const int64_t size = embedding.out_features;
    QUIRE_RETURN_IF_ERROR(check_prompt_width(size));
    adapted_.push_back(&embedding);
    // Rows that have the scale already are divided by it, for a step multiplies all: by 16 bits' grid they would move.
    const bool is_scaled = scales_tokens_alone(host_.config) && host_.config.embedding_scale != 1;
    dtype_ = is_scaled ? DType::kF32 : host_.dtype.value_or(file_.prompt.dtype);
    const int64_t tokens = file_.prompt.shape[0];
    if (!embedding.is_held) return take_prompt_memory(embedding.in_features, 0);
    QUIRE_RETURN_IF_ERROR(take_prompt_memory(embedding.in_features, row_bytes(dtype_, tokens * size)));
    const Numbers numbers(file_.prompt, dtype_);
    if (!all_finite(dtype_, numbers.data(), tokens * size)) return not_numbers("prompt_embeddings");
    std::memcpy(memory_, numbers.data(), static_cast<size_t>(row_bytes(dtype_, tokens * size)));
    if (is_scaled) {
      for (float& value : std::span(reinterpret_cast<float*>(memory_), static_cast<size_t>(tokens * size)))
        value = static_cast<float>(value / host_.config.embedding_scale);
    }
    adapter_->prompt_ = {
        .dtype = dtype_, .in_features = tokens, .rank = static_cast<int32_t>(size), .down = memory_, .replaces = true};
    adapter_->prompt_layer_ = embedding.index;
    return {};
  }

  // Prefix tuning (Li and Liang, 2021): a token's row has, layer by layer, its key and its value.
  Status make_prefix() {
    const ModelConfig& config = host_.config;
    const int64_t tokens = file_.prompt.shape[0];
    const int64_t size = int64_t{config.num_kv_heads} * config.head_dim;
    if (config.latent.kv_rank > 0) {
      return unimplemented("the adapter is of prefix tuning, which is not built for latent attention");
    }
    if (!config.recurrent_layers.empty())
      return unimplemented("the adapter is of prefix tuning, which is not built for recurrent layers");
    if (std::holds_alternative<Gemma4Config>(config.family))
      return unimplemented("the adapter is of prefix tuning, which is not built for layers of different heads");
    QUIRE_RETURN_IF_ERROR(check_prompt_width(2 * config.num_layers * size));
    const nn::Range heads = host_.kv_heads.value_or(nn::Range{0, config.num_kv_heads});
    const nn::Range layers = host_.own_layers.value_or(nn::Range{0, config.num_layers});
    const int64_t first = heads.first * config.head_dim;
    const int64_t own = heads.count * config.head_dim;
    QUIRE_RETURN_IF_ERROR(
        take_prompt_memory(token_embedding().in_features, tokens * 2 * layers.count * own * int64_t{sizeof(float)}));
    const Numbers numbers(file_.prompt, DType::kF32);
    if (!all_finite(DType::kF32, numbers.data(), file_.prompt.shape.num_elements()))
      return not_numbers("prompt_embeddings");
    const auto* from = static_cast<const float*>(numbers.data());
    auto* to = reinterpret_cast<float*>(memory_);
    const HeadOrder order = order_of("self_attn.k_proj");
    for (int32_t part = 0; part < 2 * config.num_layers; ++part) {
      const bool is_key = part % 2 == 0;
      const bool is_own = part / 2 >= layers.first && part / 2 < layers.end();
      (is_key ? adapter_->keys_ : adapter_->values_).push_back(is_own ? to : nullptr);
      if (!is_own) continue;
      for (int64_t token = 0; token < tokens; ++token, to += own) {
        const float* row = from + (token * 2 * config.num_layers + part) * size;
        for (int64_t i = 0; i < own; ++i) to[i] = row[is_key ? order.source_of(first + i) : first + i];
      }
    }
    return {};
  }

  // Where in the adapter's memory something begins.
  struct Place {
    int64_t offset = 0;
    bool is_first = true;  // to be written; what is shared is once
  };
  struct Job {
    const AdaptableLayer* layer;
    const AdaptableLayer::Part* part;
    const AdapterFile::LowRank* pair;  // what this rank has of it; nullptr: a saved weight
    const AdapterFile::Saved* saved;
    const AdapterFile::LowRank* whole = nullptr;  // of the file
    std::vector<int32_t> only = {};               // rows of a saved weight, ascending; none: all
    Place down = {};
    Place up = {};
    int64_t gains = 0;
    const AdaptableLayer::Part& module() const { return *part; }
  };

  Status gather() {
    std::vector<std::string> surplus;
    std::vector<std::string> unnamed;
    std::set<std::string> found;
    bool has_experts = false;
    bool has_routers = false;
    const AdapterFile::Saved* tied = nullptr;
    size_t beside_text = 0;
    for (const AdapterFile::LowRank& pair : file_.low_rank) {
      if (is_beside_text(pair.module)) {
        ++beside_text;
        continue;
      }
      const ModulePlace* place = names_.find(pair.module);
      if (place == nullptr || place->is_stack != (pair.num_stacked > 0)) {
        surplus.push_back(pair.module);
        continue;
      }
      const AdaptableLayer& layer = *place->layer;
      const AdaptableLayer::Part* part = place->is_stack ? nullptr : &layer.parts[place->part];
      if (!found.insert(part == nullptr ? layer.stack : part->module).second) {
        return data_loss("module {} is there twice, under another name too", in_quotes(pair.module));
      }
      QUIRE_ASSIGN_OR_RETURN(const bool is_named, names_module(file_, pair.module, *place));
      if (!is_named) unnamed.push_back(pair.module);
      adapted_.push_back(&layer);
      has_experts = has_experts || (layer.kind == AdaptableLayer::Kind::kExperts && part != nullptr);
      has_routers = has_routers || is_router(pair.module);
      QUIRE_RETURN_IF_ERROR(check_pair(pair, layer, part));
      QUIRE_RETURN_IF_ERROR(add_jobs(pair, layer, part));
    }
    for (const AdapterFile::Saved& saved : file_.saved) {
      const ModulePlace* place = names_.find(saved.module);
      if (place == nullptr || place->is_stack) {
        // A norm, say, of this very model.
        if (surplus.empty() && saved.ids.empty()) return trained_whole(saved.module);
        surplus.push_back(saved.module);
        continue;
      }
      QUIRE_RETURN_IF_ERROR(check_saved(saved, *place->layer));
      if (!found.insert(place->layer->parts[place->part].module).second) {
        return data_loss("module {} has both factors and a weight of its own", in_quotes(saved.module));
      }
      add_saved(saved, *place->layer, place->layer->parts[place->part]);
      if (saved.ids.empty() || place->layer != &token_embedding() || !host_.config.tie_word_embeddings) continue;
      tied = &saved;
    }
    for (const AdapterFile::Saved& copy : file_.base_copies) {
      const ModulePlace* place = names_.find(copy.module);
      if (place == nullptr) {
        surplus.push_back(copy.module);
      } else {
        QUIRE_RETURN_IF_ERROR(check_saved(copy, *place->layer));
      }
    }
    if (beside_text > 0)
      log_info("an adapter has {} modules of encoders of images or sound, which are left alone as they are",
               beside_text);
    if (tied != nullptr) QUIRE_RETURN_IF_ERROR(tie_head(*tied, found));
    if (!surplus.empty()) {
      return invalid_argument(
          "{} modules are none that adapters can add to in this model ({}): {}. Is the adapter of another model?",
          surplus.size(), host_.config.architecture, listed(surplus));
    }
    if (!unnamed.empty()) {
      return data_loss(
          "{} modules have factors in the file, and neither target_modules nor target_parameters names them: {}",
          unnamed.size(), listed(unnamed));
    }
    QUIRE_RETURN_IF_ERROR(check_trained_tokens(found));
    if (found.empty()) return data_loss("the adapter has no factors");
    return check_complete(file_, names_, found, has_experts, has_routers);
  }

  // Rows of the embedding are also those of a head that is the embedding once more, unless it has rows of its own.
  Status tie_head(const AdapterFile::Saved& saved, std::set<std::string>& found) {
    for (const auto& layer : host_.layers) {
      if (layer->kind != AdaptableLayer::Kind::kHead || layer->out_features != token_embedding().in_features) continue;
      const AdaptableLayer::Part& part = layer->parts[0];
      // Whatever this rank has of them.
      const auto has_factors = [&](const AdapterFile::LowRank& pair) {
        const ModulePlace* place = names_.find(pair.module);
        return place != nullptr && place->layer == layer.get();
      };
      if (std::ranges::any_of(file_.low_rank, has_factors)) {
        return unimplemented("module {} has factors, and rows of its own, those of the embedding that it is tied to",
                             in_quotes(part.module));
      }
      if (!found.insert(part.module).second) continue;
      add_saved(saved, *layer, part);
    }
    return {};
  }

  // Of a head that is cut by its rows, those that are here.
  void add_saved(const AdapterFile::Saved& saved, const AdaptableLayer& layer, const AdaptableLayer::Part& part) {
    adapted_.push_back(&layer);
    Job job{&layer, &part, nullptr, &saved};
    job.only = saved.ids;
    std::ranges::sort(job.only);
    if (part.rows.is_cut()) {
      const nn::Range& own = part.rows.taken[0];
      std::vector<int32_t> rows(static_cast<size_t>(own.count));
      std::iota(rows.begin(), rows.end(), static_cast<int32_t>(own.first));
      if (!saved.ids.empty())
        std::erase_if(rows, [&](int32_t row) { return !std::ranges::binary_search(job.only, row); });
      job.only = std::move(rows);
    }
    const bool is_empty = part.rows.is_cut() && job.only.empty();
    if (layer.is_held && !is_empty) jobs_.push_back(std::move(job));
  }

  Status check_trained_tokens(const std::set<std::string>& found) const {
    if (!file_.peft) return {};
    for (const auto& [end, ids] : file_.peft->trained_tokens) {
      const std::string& module = end.empty() ? token_embedding().parts[0].module : end;
      const auto is_it = [&](const std::string& name) { return checkpoint::ends_with_module(name, module); };
      // As the checkpoint calls it, or as the file does.
      if (std::ranges::any_of(found, is_it) || std::ranges::any_of(file_.saved, is_it, &AdapterFile::Saved::module))
        continue;
      return data_loss("trainable_token_indices names tokens of {}, and the file has no trainable_tokens_delta of it",
                       in_quotes(module));
    }
    return {};
  }

  // One, or those of each product that the module is computed as.
  Status add_jobs(const AdapterFile::LowRank& pair, const AdaptableLayer& layer, const AdaptableLayer::Part* part) {
    // Of experts: factors of a stack, or of modules, in the place of which there is one product here.
    const auto [first, is_new] = split_.try_emplace(&layer, part == nullptr);
    if (first->second != (part == nullptr)) {
      return data_loss("module {} is there twice: in a stack, and by itself", in_quotes(pair.module));
    }
    const bool is_of_heads = layer.kind == AdaptableLayer::Kind::kHeads;
    const bool is_split = part == nullptr || is_of_heads;
    if (is_split && pair.lengths.data != nullptr) {
      return unimplemented("module {} is adapted by DoRA, which is not built for it: its rows are no product's here",
                           in_quotes(pair.module));
    }
    if (!layer.is_held || (!is_split && !layer.has_expert(part->expert))) return {};
    if (!is_split && !layer.inputs.is_cut() && !part->rows.is_cut()) {
      jobs_.push_back({&layer, part, &pair, nullptr, &pair});
      return {};
    }
    splits_.push_back(is_of_heads ? split_heads(pair, layer)
                      : is_split  ? split_experts(pair, layer)
                                  : own_factors(pair, layer, *part));
    for (const SplitFactors::One& one : splits_.back().all) {
      if (layer.has_expert(one.part.expert)) jobs_.push_back({&layer, &one.part, &one.pair, nullptr, &pair});
    }
    return {};
  }

  // `part`: nullptr of a stack.
  Status check_pair(const AdapterFile::LowRank& pair, const AdaptableLayer& layer, const AdaptableLayer::Part* part) {
    const int64_t rank = pair.up.shape[1] / std::max<int64_t>(pair.num_stacked, 1);
    largest_rank_ = std::max(largest_rank_, rank);
    if (rank > host_.max_rank) {
      return invalid_argument("module {} has rank {}, over the limit of {}: start with --max-lora-rank {}",
                              in_quotes(pair.module), rank, host_.max_rank, rank);
    }
    for (const TensorView* view : {&pair.down, &pair.up, &pair.lengths}) {
      if (view->data == nullptr || ops::is_row_format(view->dtype)) continue;
      return unimplemented("module {}: a factor is {}, expected F32, F16 or BF16", in_quotes(pair.module),
                           name(view->dtype));
    }
    const bool embeds = layer.kind == AdaptableLayer::Kind::kEmbedding;
    if (embeds != pair.embeds) {
      return data_loss("module {}: its factors are those of {}, and here it is {}", in_quotes(pair.module),
                       pair.embeds ? "an embedding" : "a product", embeds ? "an embedding" : "a product");
    }
    const int64_t in = pair.down.shape[pair.down_transposed ? 0 : 1];
    const int64_t size = part == nullptr ? layer.stack_outputs() : part->module_rows();
    const int64_t inputs = layer.module_inputs();
    const int64_t out = pair.up.shape[0];
    if (part == nullptr && pair.num_stacked != layer.num_experts) {
      return invalid_argument("module {}: its factors are of {} experts, expected {} in this model",
                              in_quotes(pair.module), pair.num_stacked, layer.num_experts);
    }
    if (in == inputs && out == size) return {};
    if (part == nullptr && in == size && out == inputs) return {};
    return invalid_argument(
        "module {}: its factors go from {} to {} features, expected {} to {} in this model: is the adapter of another "
        "one?",
        in_quotes(pair.module), in, out, inputs, size);
  }

  Status check_saved(const AdapterFile::Saved& saved, const AdaptableLayer& layer) const {
    const bool embeds = layer.kind == AdaptableLayer::Kind::kEmbedding;
    if (!embeds && layer.kind != AdaptableLayer::Kind::kHead) {
      return trained_whole(saved.module);
    }
    const int64_t rows = embeds ? layer.in_features : layer.out_features;
    const Shape expected{saved.ids.empty() ? rows : std::ssize(saved.ids),
                         embeds ? layer.out_features : layer.in_features};
    for (const int32_t id : saved.ids) {
      if (id < rows) continue;
      return invalid_argument("module {}: trainable_token_indices has {}, and this model has {} tokens",
                              in_quotes(saved.module), id, rows);
    }
    if (!(saved.weight.shape == expected)) {
      return invalid_argument("module {}: its weight is {}, expected {}: is the adapter of another model?",
                              in_quotes(saved.module), saved.weight.shape.to_string(), expected.to_string());
    }
    if (ops::is_row_format(saved.weight.dtype)) return {};
    return unimplemented("module {}: its weight is {}, expected F32, F16 or BF16", in_quotes(saved.module),
                         name(saved.weight.dtype));
  }

  // One for all: 16 bits where nothing is lost by it.
  void choose_dtype() {
    std::set<DType> found;
    for (const Job& job : jobs_) {
      if (job.saved != nullptr) found.insert(job.saved->weight.dtype);
      if (job.pair != nullptr) found.insert({job.pair->down.dtype, job.pair->up.dtype});
    }
    dtype_ = host_.dtype.value_or(found.size() == 1 ? *found.begin() : DType::kF32);
  }

  Status take_memory() {
    begin_adapter();
    // Parts in the order of their columns, so that the sums are too.
    std::ranges::sort(jobs_, {}, [](const Job& job) {
      return std::tuple(job.layer->index, job.module().expert, job.module().first);
    });
    for (const Job& job : jobs_) {
      auto& experts = adapter_->layers_[static_cast<size_t>(job.layer->index)];
      if (experts.empty()) experts.resize(static_cast<size_t>(job.layer->num_experts));
      Adapter::Factors& own = factors_of(job);
      own.factors.dtype = dtype_;
      own.factors.in_features = job.layer->in_features;
      if (job.saved != nullptr) {
        own.factors.replaces = true;
        own.factors.rank = static_cast<int32_t>(job.layer->out_features);
        own.only = job.only;
        own.factors.only = own.only;
        if (!own.only.empty() && job.layer->kind == AdaptableLayer::Kind::kHead)
          own.factors.rank = static_cast<int32_t>(own.only.size());
        continue;
      }
      // Of heads: the keys' product goes the other way than the module.
      if (is_of_heads(job)) own.factors.in_features = job.pair->down.shape[1];
      const auto rank = static_cast<int32_t>(job.pair->up.shape[1]);
      own.parts.push_back({.column = job.module().first,
                           .size = job.module().size,
                           .first = own.factors.rank,
                           .rank = rank,
                           .scale = static_cast<float>(job.pair->scale)});
      own.factors.rank += rank;
    }
    return take_bytes(place_jobs());
  }

  static bool is_of_heads(const Job& job) { return job.layer->kind == AdaptableLayer::Kind::kHeads; }

  Adapter::Factors& factors_of(const Job& job) const {
    return adapter_->layers_[static_cast<size_t>(job.layer->index)][static_cast<size_t>(job.module().expert)];
  }

  // Says where everything is to lie. Returns the bytes of all.
  int64_t place_jobs() {
    int64_t bytes = 0;
    // Of the parts of one product, and of the heads of one layer. A file may have both factors in one place.
    std::map<std::pair<const void*, bool>, int64_t> placed;
    const auto place = [&](const void* what, bool is_up, int64_t size) {
      const auto [found, is_first] = placed.try_emplace({what, is_up}, bytes);
      if (is_first) bytes += aligned_to_line(size);
      return Place{found->second, is_first};
    };
    const AdaptableLayer* layer = nullptr;
    for (Job& job : jobs_) {
      // A file may have several modules' factors in one place, of different sizes.
      if (std::exchange(layer, job.layer) != job.layer) placed.clear();
      const Adapter::Factors& own = factors_of(job);
      const bool shares = is_of_heads(job);
      const bool is_table = job.layer->kind == AdaptableLayer::Kind::kEmbedding && !own.only.empty();
      const int64_t rows = is_table ? std::ssize(own.only) : own.factors.in_features;
      job.down =
          place(shares ? job.pair->down.data : &own, /*is_up=*/false, row_bytes(dtype_, rows * own.factors.rank));
      if (!shares) job.down.is_first = true;  // each part writes its own rows
      if (job.saved != nullptr) continue;
      job.up = place(shares ? job.pair->up.data : &job.up, /*is_up=*/true,
                     ops::low_rank_up_bytes(dtype_, job.module().size, static_cast<int32_t>(job.pair->up.shape[1])));
      if (job.pair->lengths.data != nullptr)
        job.gains = place(&job.gains, /*is_up=*/true, 2 * gain_bytes(job.module().size)).offset;
    }
    return bytes;
  }

  static ops::LowRankPart& part_of(const Job& job, Adapter::Factors& own) {
    return *std::ranges::find(own.parts, job.module().first, &ops::LowRankPart::column);
  }

  Status fill() {
    for (const Job& job : jobs_) {
      Adapter::Factors& own = factors_of(job);
      own.factors.down = memory_ + job.down.offset;
      own.factors.parts = own.parts;
      if (job.saved != nullptr) {
        QUIRE_RETURN_IF_ERROR(fill_saved(job, own));
        continue;
      }
      part_of(job, own).up = memory_ + job.up.offset;
      QUIRE_RETURN_IF_ERROR(fill_pair(job, own));
      if (job.pair->lengths.data != nullptr) QUIRE_RETURN_IF_ERROR(fill_gains(job, own, memory_ + job.gains));
    }
    return {};
  }

  // Gains and shifts of the job's part, written to `memory`.
  Status fill_gains(const Job& job, Adapter::Factors& own, uint8_t* memory) const {
    if (host_.base == nullptr) return unimplemented("DoRA without the base's checkpoint");
    const HeadOrder order = order_of(job.pair->module);
    const auto source_of = [&](int64_t n) { return order.source_of(n); };
    QUIRE_ASSIGN_OR_RETURN(const RowGains gains,
                           row_gains(*job.whole, *job.layer, job.module(), source_of, *host_.base));
    auto* gain = reinterpret_cast<float*>(memory);
    auto* shift = reinterpret_cast<float*>(memory + gain_bytes(job.module().size));
    std::ranges::copy(gains.gain, gain);
    std::ranges::copy(gains.shift, shift);
    ops::LowRankPart& part = part_of(job, own);
    part.gain = gain;
    part.shift = shift;
    return {};
  }

  Status fill_saved(const Job& job, const Adapter::Factors& own) const {
    const TensorView& weight = job.saved->weight;
    const Numbers numbers(weight, dtype_);
    const int64_t count = weight.shape.num_elements();
    if (!all_finite(dtype_, numbers.data(), count)) return not_numbers(job.saved->module);
    const std::vector<int32_t>& ids = job.saved->ids;
    if (own.only.empty()) {
      std::memcpy(const_cast<void*>(own.factors.down), numbers.data(), static_cast<size_t>(row_bytes(dtype_, count)));
      return {};
    }
    const int64_t bytes = row_bytes(dtype_, weight.shape[1]);
    auto* to = static_cast<uint8_t*>(const_cast<void*>(own.factors.down));
    for (const int32_t id : own.only) {
      const int64_t row = ids.empty() ? id : std::ranges::find(ids, id) - ids.begin();
      std::memcpy(to, static_cast<const uint8_t*>(numbers.data()) + row * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
    return {};
  }

  Status fill_pair(const Job& job, Adapter::Factors& own) const {
    return row_bytes(dtype_, 1) == 4 ? fill_pair<uint32_t>(job, own) : fill_pair<uint16_t>(job, own);
  }

  template <typename Code>
  Status fill_pair(const Job& job, Adapter::Factors& own) const {
    const AdapterFile::LowRank& pair = *job.pair;
    const Numbers down(pair.down, dtype_);
    const Numbers up(pair.up, dtype_);
    if (!all_finite(dtype_, down.data(), pair.down.shape.num_elements()) ||
        !all_finite(dtype_, up.data(), pair.up.shape.num_elements())) {
      return not_numbers(pair.module);
    }
    const ops::LowRankPart& part = part_of(job, own);
    const int64_t in = own.factors.in_features;
    auto* to = static_cast<Code*>(const_cast<void*>(own.factors.down));
    // An embedding is one part.
    if (pair.embeds && !pair.down_transposed) {
      transpose(static_cast<const Code*>(down.data()), part.rank, in, to);
    } else if (job.down.is_first) {
      std::memcpy(to + part.first * in, down.data(), static_cast<size_t>(part.rank * in) * sizeof(Code));
    }
    if (job.up.is_first) {
      pack_up(static_cast<const Code*>(up.data()), part.size, part.rank, order_of(pair.module),
              /*paired=*/dtype_ == DType::kBF16 && backend_.computes_in_host_memory(),
              static_cast<Code*>(const_cast<void*>(part.up)));
    }
    return {};
  }

  HeadOrder order_of(const std::string& module) const {
    if (file_.rotates_neighbours == host_.rotates_neighbours) return {};
    if (!module.ends_with("self_attn.q_proj") && !module.ends_with("self_attn.k_proj")) return {};
    return {.turn = host_.rotates_neighbours ? HeadOrder::Turn::kToNeighbours : HeadOrder::Turn::kToHalves,
            .head_dim = host_.config.head_dim};
  }

  const AdapterFile& file_;
  const AdapterHost& host_;
  ops::Backend& backend_;
  ModuleNames names_;
  std::vector<SplitFactors> splits_;             // what jobs_ points into
  std::map<const AdaptableLayer*, bool> split_;  // of those that have factors: whether it is those of a stack
  std::vector<Job> jobs_;
  std::vector<const AdaptableLayer*> adapted_;  // of the whole file, on whatever rank
  int64_t largest_rank_ = 0;
  DType dtype_ = DType::kF32;
  std::shared_ptr<Adapter> adapter_;
  uint8_t* memory_ = nullptr;  // the adapter's
};

Result<std::shared_ptr<Adapter>> Adapter::read(const AdapterFile& file, const AdapterHost& host,
                                               ops::Backend& backend) {
  return AdapterMaker(file, host, backend).make();
}

Result<std::shared_ptr<const Adapter>> Adapter::make(const AdapterFile& file, const AdapterHost& host,
                                                     ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<Adapter> adapter, read(file, host, backend));
  if (!adapter->has_place()) {
    if (!adapter->take_place(backend.allocator()))
      return resource_exhausted("no memory for the adapter's {} bytes", adapter->bytes());
    QUIRE_RETURN_IF_ERROR(adapter->upload(backend));
  }
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

int64_t Adapter::most_bytes(const nn::AdaptableLayers& layers, int32_t rank, std::optional<DType> dtype,
                            bool in_table) {
  const DType held = dtype.value_or(DType::kF32);
  int64_t bytes = 0;
  for (const auto& layer : layers) {
    if (in_table) {
      const auto parts = std::max<int64_t>(std::ssize(layer->parts), layer->num_experts);
      bytes += layer->num_experts * int64_t{sizeof(ops::LowRankFactors)} + parts * int64_t{sizeof(ops::LowRankPart)};
    }
    if (layer->kind == AdaptableLayer::Kind::kEmbedding || layer->kind == AdaptableLayer::Kind::kHead) continue;
    if (!layer->is_held) continue;
    if (layer->kind == AdaptableLayer::Kind::kHeads) {
      // The latent's factor both ways for all heads, and the other one's parts.
      bytes += aligned_to_line(row_bytes(held, layer->in_features * rank)) +
               aligned_to_line(ops::low_rank_up_bytes(held, layer->in_features, rank)) +
               layer->num_experts / 2 *
                   (aligned_to_line(row_bytes(held, layer->key_dim * rank)) +
                    aligned_to_line(ops::low_rank_up_bytes(held, layer->value_dim, rank)));
      continue;
    }
    if (layer->parts.empty()) {  // experts in a stack
      bytes += layer->num_experts * (aligned_to_line(row_bytes(held, layer->in_features * rank)) +
                                     aligned_to_line(ops::low_rank_up_bytes(held, layer->out_features, rank)));
    }
    for (const AdaptableLayer::Part& part : layer->parts) {
      bytes += aligned_to_line(row_bytes(held, layer->in_features * rank)) +
               aligned_to_line(ops::low_rank_up_bytes(held, part.size, rank)) + 2 * gain_bytes(part.size);
    }
  }
  return bytes;
}

const ops::LowRankFactors* Adapter::factors(const AdaptableLayer& layer, int32_t expert) const {
  const std::vector<Factors>& experts = layers_[static_cast<size_t>(layer.index)];
  if (experts.empty()) return nullptr;
  const ops::LowRankFactors& factors = experts[static_cast<size_t>(expert)].factors;
  return factors.rank > 0 ? &factors : nullptr;
}

}  // namespace quire::runner
