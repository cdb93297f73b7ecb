// The table of all ops. A new op is its contract (ops/<op>.h), its reference, its kernels, and an entry here; a backend
// that lacks it does not compile.
#pragma once

#include "ops/activation.h"
#include "ops/adapted_linear.h"
#include "ops/add.h"
#include "ops/choose_tokens.h"
#include "ops/clamped_swiglu.h"
#include "ops/copy_blocks.h"
#include "ops/copy_heads.h"
#include "ops/edit_logits.h"
#include "ops/embedding.h"
#include "ops/gate.h"
#include "ops/gated_linear.h"
#include "ops/gather_rows.h"
#include "ops/grouped_linear.h"
#include "ops/kv_cache.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/low_rank.h"
#include "ops/moe_combine.h"
#include "ops/moe_routing.h"
#include "ops/paged_attention.h"
#include "ops/place_tokens.h"
#include "ops/prepare_heads.h"
#include "ops/recurrence.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/short_conv.h"
#include "ops/top_logprobs.h"
#include "ops/xielu.h"

namespace quire::ops {

template <typename... Args>
struct OpList {};

// Values of rows.
using ValueOps = OpList<EmbeddingArgs, RmsNormArgs, LayerNormArgs, AddArgs, ScaleArgs, ActivationArgs, XieluArgs,
                        GateArgs, GatherRowsArgs>;
// Products with weights.
using ProductOps = OpList<LinearArgs, GatedLinearArgs, LowRankArgs, AdaptedLinearArgs>;
// Heads, their cache and attention.
using AttentionOps = OpList<RopeArgs, PrepareHeadsArgs, CopyHeadsArgs, KvWriteArgs, PagedAttentionArgs, CopyBlocksArgs>;
// Layers that read a text into a state.
using RecurrentOps = OpList<ShortConvArgs, RecurrenceArgs>;
// Mixtures of experts.
using ExpertOps = OpList<MoeRoutingArgs, GroupedLinearArgs, ClampedSwigluArgs, MoeCombineArgs>;
// Logits and tokens.
using SamplingOps = OpList<EditLogitsArgs, ChooseTokensArgs, PlaceTokensArgs, TopLogprobsArgs>;

// An interface with `run(const Args&)` for each op of the lists.
template <typename... Lists>
class RunsOps;

template <>
class RunsOps<> {
 public:
  virtual ~RunsOps() = default;

 protected:
  void run() = delete;  // so that there is a `run` for those below to use
};

template <typename... Lists>
class RunsOps<OpList<>, Lists...> : public RunsOps<Lists...> {};

template <typename Args, typename... More, typename... Lists>
class RunsOps<OpList<Args, More...>, Lists...> : public RunsOps<OpList<More...>, Lists...> {
 protected:
  using RunsOps<OpList<More...>, Lists...>::run;
  virtual void run(const Args& args) = 0;
};

using RunsAllOps = RunsOps<ValueOps, ProductOps, AttentionOps, RecurrentOps, ExpertOps, SamplingOps>;

}  // namespace quire::ops
