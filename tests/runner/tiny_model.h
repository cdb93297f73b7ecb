// A tiny checkpoint with the reference's answers to it, and the least machinery that computes logits with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "runner/adapter.h"
#include "runner/kv_storage.h"
#include "runner/memory_planner.h"
#include "runner/step_adapters.h"
#include "runner/step_numbers.h"
#include "tests/cards/card.h"

namespace quire::runner {

inline std::string tiny_path(const std::string& name) {
  if (name.starts_with('/') || name.starts_with(QUIRE_TEST_DATA)) return name;
  return std::string(QUIRE_TEST_DATA) + "/e2e/tiny/" + name;
}

struct GoldenCase {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  std::vector<double> greedy_margin;
  std::vector<double> last_logits;
  std::vector<double> prompt_logprobs;  // of prompt[1..]
};

inline std::vector<GoldenCase> read_golden(const std::string& name) {
  std::ifstream file(tiny_path(name) + "/golden.json");
  std::ostringstream text;
  text << file.rdbuf();
  const boost::json::value root = boost::json::parse(text.str());
  std::vector<GoldenCase> cases;
  for (const boost::json::value& value : root.at("cases").as_array()) {
    GoldenCase one;
    one.prompt = boost::json::value_to<std::vector<TokenId>>(value.at("prompt"));
    one.greedy = boost::json::value_to<std::vector<TokenId>>(value.at("greedy"));
    one.greedy_margin = boost::json::value_to<std::vector<double>>(value.at("greedy_margin"));
    one.last_logits = boost::json::value_to<std::vector<double>>(value.at("last_logits"));
    one.prompt_logprobs = boost::json::value_to<std::vector<double>>(value.at("logprob_of_prompt"));
    cases.push_back(std::move(one));
  }
  return cases;
}

inline double log_softmax(const std::vector<float>& logits, TokenId token) {
  double largest = -INFINITY;
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(token)] - largest - std::log(sum);
}

inline std::unique_ptr<ops::Backend> make_test_backend(const std::string& kind,
                                                       ActivationDType activations = ActivationDType::kAuto) {
  if (kind == "reference") return ops::make_reference_backend();
  if (cards::is_card(kind)) {
    return cards::make_card(2, {.checked = true, .rounds_activations = activations == ActivationDType::kAuto});
  }
  auto backend =
      ops::make_cpu_backend({.threads = 2, .isa = parse_choice<Isa>(kind).value(), .activation_dtype = activations});
  return backend.ok() ? std::move(*backend) : nullptr;
}

// One model over a small pool whose blocks are handed out in a scattered order.
class TinyModel {
 public:
  static constexpr int32_t kBlockSize = 16;  // where no layer keeps a state

  TinyModel(const std::string& name, ops::Backend& backend, const std::string& kv_cache_dtype = "auto",
            std::optional<int64_t> max_model_len = {}, const std::string& quantization = "",
            LoadFormat format = LoadFormat::kAuto, WeightDType dtype = WeightDType::kAuto,
            const models::Family* family = nullptr,      // nullptr: the configuration's
            comm::Communicator* communicator = nullptr,  // of the ranks that have the other parts
            bool whole_experts = false)                  // which are whole ones then
      : backend_(backend), communicator_(communicator) {
    auto opened = checkpoint::Checkpoint::open(tiny_path(name), format);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = std::move(*opened);
    EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
    if (communicator != nullptr) {
      config.tensor_parallel_size = communicator->size();
      config.enable_expert_parallel = whole_experts;
      config.rank = communicator->rank();
      config.num_gpu_blocks_override = 64;
    }
    config.kv_cache_dtype = parse_choice<KvCacheDType>(kv_cache_dtype).value();
    if (max_model_len) config.max_model_len = *max_model_len;
    config.quantization = parse_choice<Quantization>(quantization).value();
    config.dtype = dtype;
    auto planned = family == nullptr ? plan_model(config, *checkpoint_, backend, 0)
                                     : plan_model(*family, config, *checkpoint_, backend, 0);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    planned_ = std::move(*planned);
    nn::Loader loader(nn::Loader::Mode::kLoad, *checkpoint_, backend, planned_.quantization, planned_.weight_dtype,
                      planned_.shard);
    auto model = planned_.family.build(planned_.config, planned_.max_model_len, loader);
    EXPECT_TRUE(model.ok()) << model.status().message();
    adapter_host_ = {.layers = loader.adaptable_layers(),
                     .config = planned_.config,
                     .rotates_neighbours = rotates_neighbours(*checkpoint_, planned_.config),
                     .max_rank = 16,
                     .max_virtual_tokens = 16,
                     .base = checkpoint_.get(),
                     .kv_heads = loader.kv_heads()};
    EXPECT_EQ(loader.bytes(), planned_.memory.weight_bytes) << "the plan and the load disagree";
    model_ = std::move(*model);
    EXPECT_EQ(activation_floats(*model_, backend, planned_.memory.max_num_batched_tokens), planned_.workspace_floats)
        << "planned without weights, and with them";
    EXPECT_EQ(logit_floats(*model_, backend, planned_.logit_rows), planned_.logit_floats);
    use_layout(planned_.kv_layout);
    workspace_ = Buffer(backend.allocator(), static_cast<size_t>(planned_.workspace_floats) * sizeof(float));
    logits_ = Buffer(backend.allocator(), static_cast<size_t>(planned_.logit_floats) * sizeof(float));
  }

  const ModelConfig& config() const { return planned_.config; }
  int32_t block_size() const { return planned_.memory.block_size; }
  const AdapterHost& adapter_host() const { return adapter_host_; }
  // Of all that is computed from here on; nullptr: none.
  void use_adapter(std::shared_ptr<const Adapter> adapter) { adapter_ = std::move(adapter); }
  const PlannedModel& planned() const { return planned_; }
  std::unique_ptr<models::Model> take_model() { return std::move(model_); }

  // Layers of the plan's specs and groups, which may lie elsewhere in memory.
  void use_layout(const KvLayout& layout) {
    auto storage = KvStorage::create(layout, {.num_blocks = planned_.memory.num_blocks}, backend_);
    EXPECT_TRUE(storage.ok()) << storage.status().message();
    storage_ = std::make_unique<KvStorage>(std::move(*storage));
  }
  int64_t weight_bytes() const { return planned_.memory.weight_bytes; }

  // Layers from this one on run as another stage of a pipeline would: in memory of their own, where the first ones'
  // states are handed to them.
  void cut_at(int32_t layer) { cut_ = layer; }

  // What a step might read before it has written it: the cache, all of its blocks, and the memory it computes in.
  void fill_memory(uint8_t byte) {
    const auto fill = [&](void* memory, size_t bytes) {
      if (memory != nullptr) backend_.upload(memory, std::vector<uint8_t>(bytes, byte).data(), bytes);
    };
    for (const nn::CacheLayer& layer : storage_->layers()) {
      const auto bytes = static_cast<size_t>((layer.view.num_blocks - 1) * ops::block_stride(layer.view) +
                                             ops::block_bytes(layer.view));
      fill(layer.view.keys, bytes);
      fill(layer.view.values, bytes);
      fill(layer.states.states, static_cast<size_t>((layer.states.num_blocks - 1) * layer.states.stride +
                                                    layer.states.size * static_cast<int64_t>(sizeof(float))));
    }
    fill(workspace_.data(), static_cast<size_t>(planned_.workspace_floats) * sizeof(float));
    fill(logits_.data(), static_cast<size_t>(planned_.logit_floats) * sizeof(float));
  }

  // Logits after each of `tokens`, computed in chunks of `chunk` tokens through the paged cache.
  std::vector<std::vector<float>> logits(const std::vector<TokenId>& tokens, int32_t chunk) {
    std::vector<std::vector<float>> rows;
    const int64_t num_blocks = planned_.memory.num_blocks;
    // A block belongs to one group of layers.
    const size_t num_groups = planned_.memory.windows.size();
    std::vector<std::vector<BlockId>> tables(num_groups);
    for (size_t i = 0; i * static_cast<size_t>(block_size()) < tokens.size(); ++i) {
      for (size_t g = 0; g < num_groups; ++g) {
        tables[g].push_back(static_cast<BlockId>(static_cast<int64_t>((i * num_groups + g) * 7 + 3) % num_blocks));
      }
    }
    const auto size = static_cast<int32_t>(tokens.size());
    for (int32_t begin = 0; begin < size; begin += chunk) {
      run(tokens, begin, std::min(size, begin + chunk), tables, rows);
    }
    return rows;
  }

 private:
  void run(const std::vector<TokenId>& tokens, int32_t begin, int32_t end,
           const std::vector<std::vector<BlockId>>& tables, std::vector<std::vector<float>>& rows) {
    std::vector<int32_t> positions;
    for (int32_t p = begin; p < end; ++p) positions.push_back(p);
    std::vector<std::vector<int64_t>> slots(tables.size());
    std::vector<nn::CacheGroup> groups;
    StepNumbers numbers(backend_);
    numbers.begin(size_t{1} << 16);
    for (size_t g = 0; g < tables.size(); ++g) {
      for (int32_t p = begin; p < end; ++p) {
        slots[g].push_back(int64_t{tables[g][static_cast<size_t>(p / block_size())]} * block_size() + p % block_size());
      }
      groups.push_back({.slots = numbers.add(slots[g]), .block_tables = numbers.add(tables[g])});
    }
    const int32_t offsets[2] = {0, end - begin};
    const std::span<const TokenId> fresh = std::span(tokens).subspan(static_cast<size_t>(begin), positions.size());
    const auto length = static_cast<int32_t>(tokens.size());
    const nn::Batch batch{.num_tokens = end - begin,
                          .num_sequences = 1,
                          .token_ids = numbers.add(fresh),
                          .positions = numbers.add(positions),
                          .query_offsets = numbers.add(std::span<const int32_t>(offsets)),
                          .context_lengths = numbers.add(std::span<const int32_t>(&end, 1)),
                          .prompt_lengths = &length,
                          .block_table_stride = static_cast<int64_t>(tables.front().size()),
                          .groups = groups,
                          .layers = storage_->layers()};
    numbers.upload();
    nn::Workspace workspace(workspace_.as<float>(), planned_.workspace_floats);
    StepAdapters adapters(backend_, adapter_host_.max_rank, 0);
    adapters.add_run(adapter_.get(), end - begin);
    adapters.upload(end - begin);
    const nn::RowAdapters* used = adapters.any() ? &adapters : nullptr;
    StepAdapters of_head(backend_, adapter_host_.max_rank, 0);  // of a row
    of_head.add_run(adapter_.get(), 1);
    of_head.upload(1);
    const nn::StepContext step{
        .backend = backend_, .batch = batch, .workspace = workspace, .adapters = used, .communicator = communicator_};
    Buffer second(backend_.allocator(), workspace_.bytes());
    nn::Workspace second_workspace(second.as<float>(), planned_.workspace_floats);
    const nn::StepContext second_step{.backend = backend_, .batch = batch, .workspace = second_workspace};
    const ops::ConstView hidden = cut_ == 0 ? model_->forward(step) : run_stages(step, second_step);
    nn::Workspace scratch(logits_.as<float>(), planned_.logit_floats);
    const ops::View out = scratch.take(1, config().vocab_size);
    for (int32_t i = 0; i < end - begin; ++i) {
      std::vector<float> row(static_cast<size_t>(config().vocab_size));
      model_->logits({.backend = backend_,
                      .batch = batch,
                      .workspace = scratch,
                      .adapters = used == nullptr ? nullptr : &of_head,
                      .communicator = communicator_},
                     hidden.rows(i, 1), out);
      backend_.download(row.data(), out.data, row.size() * sizeof(float));
      rows.push_back(std::move(row));
    }
  }

  ops::View run_stages(const nn::StepContext& first, const nn::StepContext& second) {
    nn::HiddenStates states(first, config().hidden_size);
    model_->embed(first, states);
    model_->run_layers(first, 0, cut_, states);
    nn::HiddenStates handed(second, config().hidden_size);
    std::vector<float> numbers(static_cast<size_t>(first.batch.num_tokens * config().hidden_size));
    for (const auto& [from, to] : {std::pair(states.residual, handed.residual), {states.delta, handed.delta}}) {
      backend_.download(numbers.data(), from.data, numbers.size() * sizeof(float));
      backend_.upload(to.data, numbers.data(), numbers.size() * sizeof(float));
    }
    handed.pending = states.pending;
    backend_.upload(workspace_.data(), std::vector<uint8_t>(workspace_.bytes(), 0xff).data(), workspace_.bytes());
    model_->run_layers(second, cut_, config().num_layers, handed);
    return model_->finish(second, handed);
  }

  ops::Backend& backend_;
  comm::Communicator* communicator_;
  int32_t cut_ = 0;  // 0: nowhere
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  PlannedModel planned_;
  AdapterHost adapter_host_;
  std::shared_ptr<const Adapter> adapter_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<KvStorage> storage_;
  Buffer workspace_;
  Buffer logits_;
};

}  // namespace quire::runner
