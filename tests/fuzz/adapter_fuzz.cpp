// A folder of PEFT's, adapter_config.json and behind a NUL adapter_model.safetensors, or a GGUF adapter alone: what
// opens and fits a small llama lies in its own memory, and can be computed with.
#include "checkpoint/adapter_file.h"
#include "ops/reference/reference_backend.h"
#include "runner/adapter.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace quire;
using nn::AdaptableLayer;

// One layer, of a hidden size of 4.
runner::AdapterHost small_llama() {
  runner::AdapterHost host{.config = {.architecture = "LlamaForCausalLM", .head_dim = 2, .tie_word_embeddings = true},
                           .max_rank = 4,
                           .max_virtual_tokens = 8};
  const auto add = [&](AdaptableLayer layer) {
    layer.index = static_cast<int32_t>(host.layers.size());
    host.layers.push_back(std::make_shared<const AdaptableLayer>(std::move(layer)));
  };
  using Kind = AdaptableLayer::Kind;
  add({.kind = Kind::kEmbedding, .in_features = 8, .out_features = 4, .parts = {{"model.embed_tokens", 0, 4}}});
  const std::string layer = "model.layers.0.";
  add({.in_features = 4,
       .out_features = 8,
       .parts = {{layer + "self_attn.q_proj", 0, 4},
                 {layer + "self_attn.k_proj", 4, 2},
                 {layer + "self_attn.v_proj", 6, 2}}});
  add({.in_features = 4, .out_features = 4, .parts = {{layer + "self_attn.o_proj", 0, 4}}});
  add({.kind = Kind::kExperts,
       .in_features = 4,
       .out_features = 6,
       .num_experts = 2,
       .stack = layer + "mlp.experts.gate_up_proj",
       .interleaved = true,
       .parts = {{layer + "mlp.experts.0.gate_proj", 0, 3, 0}, {layer + "mlp.experts.1.up_proj", 3, 3, 1}}});
  add({.kind = Kind::kExperts,
       .in_features = 3,
       .out_features = 4,
       .num_experts = 2,
       .stack = layer + "mlp.experts.down_proj"});
  add({.kind = Kind::kHeads,
       .in_features = 4,
       .out_features = 6,
       .num_experts = 4,
       .key_dim = 2,
       .value_dim = 1,
       .parts = {{layer + "self_attn.kv_b_proj", 0, 6}}});
  add({.kind = Kind::kHead, .in_features = 4, .out_features = 8, .parts = {{"lm_head", 0, 8}}});
  return host;
}

void compute(const runner::Adapter& adapter, const runner::AdapterHost& host, ops::Backend& backend) {
  const std::vector<float> x(8, 0.5f);
  const std::vector<TokenId> ids = {0, 1};
  for (const auto& layer : host.layers) {
    for (int32_t expert = 0; expert < layer->num_experts; ++expert) {
      const ops::LowRankFactors* factors = adapter.factors(*layer, expert);
      if (factors == nullptr) continue;
      const ops::LowRankRun run{factors, 0, 2};
      std::vector<float> out(static_cast<size_t>(2 * layer->out_features));
      const bool embeds = layer->kind == AdaptableLayer::Kind::kEmbedding;
      backend(ops::LowRankArgs{.x = embeds ? nullptr : x.data(),
                               .x_stride = embeds ? 0 : 4,
                               .ids = embeds ? Mirrored<TokenId>(ids.data()) : Mirrored<TokenId>(),
                               .num_rows = 2,
                               .runs = {&run, 1},
                               .out = out.data(),
                               .out_stride = layer->out_features,
                               .out_features = layer->out_features});
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::CpuLimit limit;
  static const runner::AdapterHost host = small_llama();
  static const auto backend = ops::make_reference_backend();
  fuzz::Input input(data, size);
  const std::string whole(input.rest());
  const bool gguf = whole.starts_with("GGUF");
  const size_t end = gguf ? 0 : std::min(whole.find('\0'), whole.size());
  const fuzz::AlignedCopy weights(std::string_view(whole).substr(gguf ? 0 : std::min(end + 1, whole.size())));
  const auto file =
      gguf ? checkpoint::AdapterFile::from_gguf(weights.bytes(), nullptr)
           : checkpoint::AdapterFile::from_peft(std::string_view(whole).substr(0, end), weights.bytes(), nullptr);
  if (!file.ok()) {
    fuzz::check_error(file.status());
    return 0;
  }
  const auto adapter = runner::Adapter::make(**file, host, *backend);
  if (!adapter.ok()) {
    fuzz::check_error(adapter.status());
    return 0;
  }
  compute(**adapter, host, *backend);
  if (const ops::LowRankFactors* prompt = (*adapter)->prompt(); prompt != nullptr) {
    fuzz::touch(prompt->down, row_bytes(prompt->dtype, prompt->in_features * prompt->rank));
  }
  return 0;
}
