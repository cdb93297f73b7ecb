#include "ops/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/cpu/adapted_linear.h"
#include "ops/cpu/attention_schedule.h"
#include "ops/cpu/cpu_allocator.h"
#include "ops/cpu/grouped_linear.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/low_rank.h"
#include "ops/cpu/moe_routing.h"
#include "ops/cpu/packed_panels.h"
#include "ops/cpu/panel_arena.h"
#include "ops/cpu/panel_layout.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/recurrent.h"

namespace quire::ops {
namespace {

using namespace cpu;

constexpr int kMaxThreads = 1024;
// Values a task of an elementwise op should have, at least: less is done sooner than a thread is woken.
constexpr int64_t kTaskValues = 8192;
// Tokens whose keys and values are written together: as many as a block has as a rule.
constexpr int64_t kRunTokens = 16;
// Rows of whole numbers that a product works through at a time.
constexpr int64_t kCodedRowsBytes = int64_t{2} << 20;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Kernels& kernels, const CpuBackendOptions& options)
      : kernels_(kernels),
        activation_dtype_(options.activation_dtype),
        pool_({.num_threads = options.threads, .cores = options.cores, .spin_microseconds = options.spin_microseconds}),
        scratch_(allocator_, static_cast<size_t>(scratch_bytes(0))),
        attention_(kernels, pool_, scratch_.as<float>() + pool_.num_threads() * kLinearScratchFloats) {}

  bool has_scratch() const { return scratch_.data() != nullptr; }

  std::string description() const override {
    return fmt::format("cpu, {}, {} thread{}", kernels_.name, pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s");
  }
  Allocator& allocator() override { return allocator_; }

  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) override {
    QUIRE_RETURN_IF_ERROR(check_width(parts[0], parts[0].dtype));
    QUIRE_ASSIGN_OR_RETURN(auto panels, PackedPanels::pack(parts, weights_, pool_));
    return std::unique_ptr<PackedMatrix>(std::move(panels));
  }
  Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) override {
    QUIRE_CHECK(is_quantisation_format(dtype));
    for (const TensorView& part : parts) QUIRE_CHECK(can_be_quantised(part.dtype));
    QUIRE_RETURN_IF_ERROR(check_width(parts[0], dtype));
    QUIRE_ASSIGN_OR_RETURN(auto panels, PackedPanels::quantise(parts, dtype, kernels_, weights_, pool_));
    return std::unique_ptr<PackedMatrix>(std::move(panels));
  }
  InputForm heeded(const InputForm& form, bool /*in_group*/) const override { return form; }
  bool round_bfloat16_inputs() override {
    if (activation_dtype_ == ActivationDType::kAuto && kernels_.native_bfloat16) {
      activation_dtype_ = ActivationDType::kBFloat16;
      chose_bfloat16_ = true;
    }
    return chose_bfloat16_;
  }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return PackedPanels::bytes_for(dtype, rows, columns);
  }
  // The same for every batch: kernels work through it in pieces.
  int64_t scratch_bytes(int64_t /*max_num_tokens*/) const override { return coded_rows_offset() + kCodedRowsBytes; }
  bool has_low_rank() const override { return true; }
  bool cuts_groups() const override { return true; }
  void bind_thread() override { pool_.bind_caller(); }
  int num_host_threads() const override { return pool_.num_threads(); }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) override {
    pool_.parallel_for(num_tasks, body);
  }

 protected:
  void run(const EmbeddingArgs& args) override {
    const int64_t size = args.table.shape[1];
    const int64_t stride = row_stride(args);
    const auto dequantise = kernels_.dequantise[static_cast<size_t>(args.table.dtype)];
    QUIRE_CHECK_MSG(dequantise != nullptr, fmt::format("an embedding table of {}", name(args.table.dtype)));
    for_each_row(args.num_tokens, size, [&](int64_t t) {
      const int64_t row = row_of(args, args.ids.host[t]);
      if (row < 0) return static_cast<void>(std::fill_n(args.out + t * size, size, 0.0f));
      dequantise(static_cast<const uint8_t*>(args.table.data) + row * stride, size, args.out + t * size);
    });
  }

  void run(const RmsNormArgs& args) override {
    const int64_t token_floats = args.num_groups * args.size;
    const int64_t stride = args.token_stride == 0 ? token_floats : args.token_stride;
    float* out = args.out.floats();
    for_each_row(args.num_tokens, token_floats, [&](int64_t t) {
      for (int64_t g = 0; g < args.num_groups; ++g) {
        const int64_t at = t * stride + g * args.size;
        const float* delta = args.delta == nullptr ? nullptr : args.delta + t * token_floats + g * args.size;
        kernels_.rms_norm(args.hidden + at, delta, args.delta_scale, args.weight, args.eps, args.size, out + at);
      }
    });
  }

  void run(const LayerNormArgs& args) override {
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      const int64_t at = t * args.size;
      kernels_.layer_norm(args.hidden + at, args.delta == nullptr ? nullptr : args.delta + at, args.weight, args.bias,
                          args.eps, args.size, args.out + at);
    });
  }

  void run(const AddArgs& args) override {
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      kernels_.add(args.hidden + t * args.size, args.delta + t * args.size, args.delta_scale, args.size);
    });
  }

  void run(const ScaleArgs& args) override {
    for_each_row(args.num_rows, args.size, [&](int64_t row) {
      kernels_.scale(args.values + row * args.size, args.scale, args.soft_cap, args.limit, args.size);
    });
  }

  void run(const LinearArgs& args) override;
  void run(const GatedLinearArgs& args) override { run_in_steps(args); }
  void run(const AdaptedLinearArgs& args) override;

  void run(const RopeArgs& args) override {
    if (args.rotary_dim == 0) return;
    for_each_row(args.num_tokens, int64_t{args.num_heads} * args.rotary_dim, [&](int64_t t) {
      const float* cosines = args.table + int64_t{args.positions.host[t]} * args.rotary_dim;
      for (int64_t h = 0; h < args.num_heads; ++h) {
        kernels_.rope(args.heads + t * args.token_stride + h * args.head_dim, args.rotary_dim, args.interleaved,
                      cosines, cosines + args.rotary_dim / 2);
      }
    });
  }

  void run(const KvWriteArgs& args) override {
    QUIRE_CHECK(!args.cache.keys_by_token);
    const int64_t token_floats = int64_t{args.cache.num_kv_heads} * args.cache.head_dim;
    for_each_run(args.num_tokens, token_floats, [&](int64_t begin, int64_t end) { write_kv(args, begin, end); });
  }

  void run(const PagedAttentionArgs& args) override {
    QUIRE_CHECK(!args.cache.keys_by_token);
    attention_.run(args);
  }

  void run(const CopyBlocksArgs& args) override {
    const int64_t size = args.source.bytes;
    const auto parts = static_cast<size_t>(args.source.num_parts());
    const int64_t floats = args.source.num_parts() * size / static_cast<int64_t>(sizeof(float));
    for_each_row(args.num_copies, floats, [&](int64_t i) {
      for (size_t part = 0; part < parts; ++part) {
        std::memcpy(static_cast<uint8_t*>(args.destination.parts[part]) + args.copies[i].destination * size,
                    static_cast<const uint8_t*>(args.source.parts[part]) + args.copies[i].source * size,
                    static_cast<size_t>(size));
      }
    });
  }

  void run(const ActivationArgs& args) override {
    const int64_t in_size = args.gated ? 2 * args.size : args.size;
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      const float* in = args.in.floats() + t * in_size;
      kernels_.activate(args.function, in, args.gated ? in + args.size : nullptr, args.size,
                        args.out.floats() + t * args.size);
    });
  }

  void run(const XieluArgs& args) override {
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      kernels_.xielu(args.values + t * args.size, args.positive, args.negative, args.beta, args.eps, args.size);
    });
  }

  void run(const GateArgs& args) override {
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      float* values = args.values + t * args.value_stride;
      kernels_.activate(args.function, args.gates + t * args.gate_stride, values, args.size, values);
    });
  }

  void run(const ShortConvArgs& args) override { convolve(args, kernels_, pool_); }
  void run(const RecurrenceArgs& args) override { apply_recurrence(args, kernels_, pool_); }

  void run(const GatherRowsArgs& args) override {
    for_each_row(args.num_rows, args.size, [&](int64_t i) {
      std::memcpy(args.out + i * args.size, args.in + args.rows.host[i] * args.size,
                  static_cast<size_t>(args.size) * sizeof(float));
    });
  }

  void run(const CopyHeadsArgs& args) override {
    for_each_row(args.num_tokens, args.num_heads * args.size, [&](int64_t t) {
      for (int64_t h = 0; h < args.num_heads; ++h) {
        std::memcpy(args.out + t * args.out_token_stride + h * args.out_head_stride,
                    args.in + t * args.in_token_stride + h * args.in_head_stride,
                    static_cast<size_t>(args.size) * sizeof(float));
      }
    });
  }

  void run(const MoeRoutingArgs& args) override { route(args, pool_); }

  void run(const GroupedLinearArgs& args) override {
    bool own_rounding = true;
    for (int32_t g = 0; g < args.weights->size(); ++g)
      own_rounding = own_rounding && has_own_rounding((*args.weights)[g].input());
    multiply_groups(args, coder_for((*args.weights)[0].dtype(), own_rounding), kernels_, pool_,
                    {.tiles = scratch_.as<float>(),
                     .coded_rows = scratch_.as<uint8_t>() + coded_rows_offset(),
                     .coded_bytes = kCodedRowsBytes});
  }

  void run(const LowRankArgs& args) override { add_low_rank(args, kernels_, pool_, low_rank_scratch_); }

  void run(const ClampedSwigluArgs& args) override {
    for_each_row(args.num_tokens, args.size, [&](int64_t t) {
      const float* gate = args.in + t * 2 * args.size;
      kernels_.clamped_swiglu(gate, gate + args.size, args.alpha, args.limit, args.size, args.out + t * args.size);
    });
  }

  // A few tokens at a time, whose numbers are then in the first cache.
  void run(const PrepareHeadsArgs& args) override {
    const int32_t head_dim = args.cache.head_dim;
    const int32_t num_heads = args.num_heads + args.cache.num_kv_heads;  // that are changed
    const KvWriteArgs write = write_of(args);
    QUIRE_CHECK(!args.cache.keys_by_token);
    const auto prepare = [&](int64_t t) {
      float* heads = args.heads + t * args.token_stride;
      const float* cosines =
          args.rotary_dim == 0 ? nullptr : args.table + int64_t{args.positions.host[t]} * args.rotary_dim;
      for (int32_t h = 0; h < num_heads; ++h) {
        float* head = heads + int64_t{h} * head_dim;
        const float* weight = h < args.num_heads ? args.query_weight : args.key_weight;
        if (weight != nullptr) kernels_.rms_norm(head, nullptr, 1.0f, weight, args.eps, head_dim, head);
        if (cosines != nullptr)
          kernels_.rope(head, args.rotary_dim, args.interleaved, cosines, cosines + args.rotary_dim / 2);
      }
    };
    const bool changes = args.rotary_dim > 0 || args.query_weight != nullptr || args.key_weight != nullptr;
    for_each_run(args.num_tokens, int64_t{num_heads + args.cache.num_kv_heads} * head_dim,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; changes && t < end; ++t) prepare(t);
                   write_kv(write, begin, end);
                 });
  }

  void run(const PlaceTokensArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) place_token(args, t);
  }

  void run(const ChooseTokensArgs& args) override {
    for_each_row(args.num_rows, args.size, [&](int64_t t) {
      args.tokens[t] = choose_token(args.in + t * args.size, args.size, args.choices.host[t]);
    });
  }

  void run(const EditLogitsArgs& args) override {
    for_each_row(args.num_rows, args.size, [&](int64_t t) { edit_logits(args, t); });
  }

  void run(const TopLogprobsArgs& args) override {
    for_each_row(args.num_rows, args.size, [&](int64_t t) { top_logprobs(args, t); });
  }

  void run(const MoeCombineArgs& args) override {
    for_each_row(args.num_tokens, args.size * (args.experts_per_token + 1), [&](int64_t t) {
      const int64_t pair = t * args.experts_per_token;
      const float gate = args.shared_gate == nullptr ? 1.0f : 1.0f / (1.0f + std::exp(-args.shared_gate[t]));
      const MoeCombineWork work{.experts = args.experts,
                                .rows = args.rows + pair,
                                .weights = args.weights + pair,
                                .experts_per_token = args.experts_per_token,
                                .shared = args.shared == nullptr ? nullptr : args.shared + t * args.size,
                                .shared_weight = gate};
      kernels_.moe_combine(work, args.size, args.out + t * args.size);
    });
  }

 private:
  // body(row) for all rows of `size` values, in runs of neighbours over the pool when there is enough to do.
  template <typename Body>
  void for_each_row(int64_t num_rows, int64_t size, const Body& body) {
    const int64_t rows_a_task = ceil_div(kTaskValues, std::max<int64_t>(size, 1));
    const int64_t num_tasks = ceil_div(num_rows, rows_a_task);
    if (num_tasks < 2 || pool_.num_threads() == 1) {
      for (int64_t row = 0; row < num_rows; ++row) body(row);
      return;
    }
    pool_.parallel_for(num_tasks, [&](int64_t task, int) {
      const int64_t end = std::min(num_rows, (task + 1) * rows_a_task);
      for (int64_t row = task * rows_a_task; row < end; ++row) body(row);
    });
  }

  // The same, body(begin, end) for a few neighbours at a time.
  template <typename Body>
  void for_each_run(int64_t num_rows, int64_t size, const Body& body) {
    const int64_t num_runs = ceil_div(num_rows, kRunTokens);
    for_each_row(num_runs, size * kRunTokens,
                 [&](int64_t run) { body(run * kRunTokens, std::min(num_rows, (run + 1) * kRunTokens)); });
  }

  // How the rows that meet a weight of this format are kept.
  Activations activations_for(DType dtype, bool precise = false) const {
    const auto has = [&](Activations activations) {
      return kernels_.linear[activations][static_cast<size_t>(dtype)] != nullptr;
    };
    if (activation_dtype_ == ActivationDType::kFloat32) return kFloatRows;
    if (has(kBFloat16Rows)) return activation_dtype_ == ActivationDType::kBFloat16 ? kBFloat16Rows : kFloatRows;
    if (!has(kWordRows)) return kFloatRows;
    if (activation_dtype_ == ActivationDType::kInt8 && has(kByteRows)) return kByteRows;
    if (activation_dtype_ == ActivationDType::kInt16 || !has(kLatticeRows)) return kWordRows;
    return precise && kernels_.coarse_lattice && activation_dtype_ == ActivationDType::kAuto ? kWordRows : kLatticeRows;
  }
  // The same with the functions that make them so. `own_rounding`: what they meet has_own_rounding().
  RowCoder coder_for(DType dtype, bool own_rounding, bool precise = false) const {
    const auto format = static_cast<size_t>(dtype);
    if (own_rounding && activation_dtype_ != ActivationDType::kFloat32) {
      // Products of bytes are the fastest there are, and the numbers are bytes.
      for (const Activations activations : {kByteRows, kWordRows}) {
        const CodeOwnRowKernel own = kernels_.code_own_row[activations][format];
        if (own != nullptr) return {.activations = activations, .code_row = nullptr, .code_own_row = own};
      }
    }
    const Activations activations = activations_for(dtype, precise);
    return {.activations = activations,
            .code_row = activations == kFloatRows ? copy_row : kernels_.code_row[activations][format]};
  }
  // Whether a row of activations for a weight of this format and width has room.
  Status check_width(const TensorView& weight, DType dtype) const {
    const int64_t columns = weight.shape.rank() == 2 ? weight.shape[1] : 0;
    if (activations_for(dtype) == kFloatRows) return {};
    if (spread_row_bytes(coded_row_bytes(kWordRows, columns)) <= kCodedRowsBytes) return {};
    return unimplemented(
        "a weight of {} has {} columns: a row of rounded activations has room for {} bytes; "
        "--activation-dtype float32 has no such bound",
        name(dtype), columns, kCodedRowsBytes);
  }
  // A product's rows as its kernel takes them: those that it is given, or what becomes of them, in scratch.
  struct CodedRows {
    Activations activations;
    const uint8_t* rows;
    int64_t row_bytes;
  };
  RowCoder coder_of(const LinearArgs& args) const {
    const auto& weight = static_cast<const PackedPanels&>(*args.weight);
    return coder_for(weight.dtype(), has_own_rounding(weight.input()), args.precise);
  }
  // Rows that code_rows() takes at once. REQUIRES: num_rows > 0.
  int64_t rows_at_once(const LinearArgs& args) const;
  CodedRows code_rows(const LinearArgs& args);
  static bool takes_rows_as_they_are(const LinearArgs& args, Activations activations);
  void multiply(const LinearArgs& args, const CodedRows& coded);

  int64_t coded_rows_offset() const {
    return pool_.num_threads() * kLinearScratchFloats * static_cast<int64_t>(sizeof(float)) +
           AttentionSchedule::scratch_bytes(pool_.num_threads());
  }

  // Head by head: a key's numbers lie in as many cache lines as it has, which neighbours in a block share, and only one
  // head's of them fit in the first cache.
  void write_kv(const KvWriteArgs& args, int64_t begin, int64_t end) {
    const KvCacheView& cache = args.cache;
    KvWrite write{};
    write.dtype = cache.dtype;
    write.head_dim = cache.head_dim;
    write.block_size = cache.block_size;
    for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t slot = args.slots.host[token];
        if (slot == kNoSlot) continue;
        const int64_t from = token * args.token_stride + h * cache.head_dim;
        const int64_t at = slot / cache.block_size * block_stride(cache) + h * head_bytes(cache);
        write.token = slot % cache.block_size;
        write.key = args.keys + from;
        write.keys = static_cast<uint8_t*>(cache.keys) + at;
        if (!cache.values_are_keys) {
          write.value = args.values + from;
          write.values = static_cast<uint8_t*>(cache.values) + at;
        }
        kernels_.kv_write(write);
      }
    }
  }

  const Kernels& kernels_;
  ActivationDType activation_dtype_;
  bool chose_bfloat16_ = false;  // itself
  CpuAllocator allocator_;
  PanelArena weights_;
  ThreadPool pool_;
  Buffer scratch_;  // of each thread for Linear, then of attention, then coded rows
  AttentionSchedule attention_;
  std::vector<float> low_rank_scratch_;
  AdaptedScratch adapted_scratch_;
};

int64_t row_bytes_of(const LinearArgs& args, Activations activations) {
  return spread_row_bytes(coded_row_bytes(activations, args.weight->columns()));
}

bool CpuBackend::takes_rows_as_they_are(const LinearArgs& args, Activations activations) {
  const auto& weight = static_cast<const PackedPanels&>(*args.weight);
  return weight.input().is_plain() && activations == kFloatRows &&
         (!rows_collide(args.x_stride * 4, args.num_rows) || row_bytes_of(args, activations) > kCodedRowsBytes);
}

int64_t CpuBackend::rows_at_once(const LinearArgs& args) const {
  const Activations activations = coder_of(args).activations;
  if (takes_rows_as_they_are(args, activations)) return args.num_rows;
  const int64_t row_bytes = row_bytes_of(args, activations);
  QUIRE_CHECK_MSG(row_bytes <= kCodedRowsBytes, fmt::format("a weight of {} columns", args.weight->columns()));
  return std::max<int64_t>(kCodedRowsBytes / row_bytes, 1);
}

CpuBackend::CodedRows CpuBackend::code_rows(const LinearArgs& args) {
  const RowCoder coder = coder_of(args);
  if (takes_rows_as_they_are(args, coder.activations))
    return {coder.activations, reinterpret_cast<const uint8_t*>(args.x.floats()), args.x_stride * 4};
  const InputForm& form = static_cast<const PackedPanels&>(*args.weight).input();
  const int64_t k = args.weight->columns();
  const int64_t row_bytes = row_bytes_of(args, coder.activations);
  auto* rows = scratch_.as<uint8_t>() + coded_rows_offset();
  for_each_row(args.num_rows, k, [&](int64_t row) {
    coder.code(form, args.x.floats() + row * args.x_stride, k, rows + row * row_bytes);
  });
  return {coder.activations, rows, row_bytes};
}

// Rows that are multiplied by whole numbers are first rounded to them, a group of rows at a time.
void CpuBackend::run(const LinearArgs& args) {
  if (args.num_rows == 0) return;
  const int64_t group_rows = rows_at_once(args);
  for (int64_t first = 0; first < args.num_rows; first += group_rows) {
    LinearArgs group = args;
    group.x = args.x.from(first * args.x_stride);
    group.out = args.out.from(first * args.out_stride);
    group.num_rows = std::min(group_rows, args.num_rows - first);
    multiply(group, code_rows(group));
  }
}

void CpuBackend::run(const AdaptedLinearArgs& args) {
  const LinearArgs& product = args.product;
  if (product.num_rows == 0) return;
  const int64_t row_bytes = row_bytes_of(product, coder_of(product).activations);
  if (rows_at_once(product) < product.num_rows || !can_multiply_adapted(args, row_bytes, pool_.num_threads()))
    return run_in_steps(args);
  const CodedRows coded = code_rows(product);
  const auto dtype = static_cast<const PackedPanels&>(*product.weight).dtype();
  multiply_adapted(args,
                   {.kernel = kernels_.linear[coded.activations][static_cast<size_t>(dtype)],
                    .rows = coded.rows,
                    .row_bytes = coded.row_bytes,
                    .tiles = scratch_.as<float>()},
                   kernels_, pool_, adapted_scratch_);
}

void CpuBackend::multiply(const LinearArgs& args, const CodedRows& coded) {
  const auto [activations, rows, row_bytes] = coded;
  const auto& weight = static_cast<const PackedPanels&>(*args.weight);
  const auto kernel = kernels_.linear[activations][static_cast<size_t>(weight.dtype())];
  const int64_t panels = weight.num_panels();
  const int64_t threads = pool_.num_threads();

  // More groups of rows when there are too few panels to keep the threads busy.
  int64_t row_groups = ceil_div(args.num_rows, most_rows_together(row_bytes));
  if (panels * row_groups < 4 * threads) {
    row_groups = std::max(row_groups, std::min(ceil_div(args.num_rows, kGroupUnit), ceil_div(4 * threads, panels)));
  }
  const int64_t group_rows = round_up(ceil_div(args.num_rows, row_groups), kGroupUnit);
  row_groups = ceil_div(args.num_rows, group_rows);

  // Pieces are a panel and a group of rows, in the order of memory.
  const auto multiply_pieces = [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t row = begin / panels * group_rows;
      const int64_t panel = begin % panels;
      const int64_t column = panel * kPanelColumns;
      LinearTile tile = tile_of(weight, panel, std::min(panels - panel, end - begin));
      tile.rows = rows + row * row_bytes;
      tile.row_bytes = row_bytes;
      tile.num_rows = std::min(group_rows, args.num_rows - row);
      tile.bias = args.bias == nullptr ? nullptr : args.bias + column;
      tile.out = args.out.floats() + row * args.out_stride + column;
      tile.out_stride = args.out_stride;
      tile.scratch = scratch_.as<float>() + thread * kLinearScratchFloats;
      kernel(tile);
      begin += tile.num_panels;
    }
  };
  const int64_t pieces = panels * row_groups;
  for_pieces(pool_, pieces, pieces * kPanelColumns * weight.columns() * std::min(args.num_rows, group_rows),
             multiply_pieces);
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(CpuBackendOptions options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return invalid_argument("threads is {}: expected 0 (one a core) to {}", options.threads, kMaxThreads);
  }
  QUIRE_ASSIGN_OR_RETURN(const Kernels* kernels, select_kernels(options.isa));
  auto backend = std::make_unique<CpuBackend>(*kernels, options);
  if (!backend->has_scratch()) {
    return resource_exhausted("no memory for the kernels' scratch: {} bytes", backend->scratch_bytes(0));
  }
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace quire::ops
