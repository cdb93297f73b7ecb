#include "ops/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <numbers>
#include <vector>

#include "ops/reference/kv_values.h"
#include "ops/reference/moe_routing.h"
#include "ops/reference/recurrent.h"
#include "ops/reference/rounded_rows.h"
#include "tensor/stored_values.h"

namespace quire::ops {
namespace {

class HeapAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override { return ::operator new(std::max<size_t>(bytes, 1), kAlignment, std::nothrow); }
  void release(void* memory, size_t) override { ::operator delete(memory, kAlignment); }

 private:
  static constexpr std::align_val_t kAlignment{64};
};

// The rows of all parts, one after the other, as they were stored.
class StoredMatrix final : public PackedMatrix {
 public:
  StoredMatrix(DType dtype, int64_t rows, int64_t columns) : dtype_(dtype), rows_(rows), columns_(columns) {}
  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t columns() const override { return columns_; }
  int64_t bytes() const override { return static_cast<int64_t>(data_.size()); }
  double value(int64_t row, int64_t column) const {
    return reference::row_value(dtype_, data_.data() + row * quantised_row_bytes(dtype_, columns_), columns_, column);
  }
  void append(const TensorView& part) {
    const auto* bytes = static_cast<const uint8_t*>(part.data);
    data_.insert(data_.end(), bytes, bytes + part.shape[0] * quantised_row_bytes(dtype_, columns_));
  }
  void append(const std::vector<uint8_t>& row) { data_.insert(data_.end(), row.begin(), row.end()); }

 private:
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  std::vector<uint8_t> data_;
};

class ReferenceBackend final : public Backend {
 public:
  std::string description() const override { return "reference, 1 thread"; }
  bool has_low_rank() const override { return true; }
  bool cuts_groups() const override { return true; }
  Allocator& allocator() override { return allocator_; }

  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) override {
    QUIRE_CHECK(!parts.empty());
    const DType dtype = parts[0].dtype;
    if (!is_weight_format(dtype) && !has_row_scales(dtype)) {
      return unimplemented("a weight of {} has no kernel: expected F32, F16, BF16 or one of GGUF's blocks",
                           name(dtype));
    }
    int64_t rows = 0;
    for (const TensorView& part : parts) {
      QUIRE_CHECK(part.dtype == dtype && part.shape.rank() == 2);
      QUIRE_CHECK(part.shape[1] == parts[0].shape[1]);
      QUIRE_CHECK(part.shape[1] % info(dtype).block_values == 0);
      rows += part.shape[0];
    }
    auto matrix = std::make_unique<StoredMatrix>(dtype, rows, parts[0].shape[1]);
    for (const TensorView& part : parts) matrix->append(part);
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }
  Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) override {
    QUIRE_CHECK(!parts.empty() && is_quantisation_format(dtype));
    const int64_t columns = parts[0].shape[1];
    int64_t rows = 0;
    for (const TensorView& part : parts) {
      QUIRE_CHECK(can_be_quantised(part.dtype) && part.shape.rank() == 2 && part.shape[1] == columns);
      rows += part.shape[0];
    }
    auto matrix = std::make_unique<StoredMatrix>(dtype, rows, columns);
    std::vector<float> values(static_cast<size_t>(columns));
    for (const TensorView& part : parts) {
      for (int64_t row = 0; row < part.shape[0]; ++row) {
        const auto* from = static_cast<const uint8_t*>(part.data) + row * row_bytes(part.dtype, columns);
        for (int64_t i = 0; i < columns; ++i) values[static_cast<size_t>(i)] = stored_value(part.dtype, from, i);
        matrix->append(reference::rounded_row(dtype, values));
      }
    }
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }
  InputForm heeded(const InputForm& form, bool /*in_group*/) const override { return form; }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return rows * quantised_row_bytes(dtype, columns);
  }
  int64_t scratch_bytes(int64_t) const override { return 0; }
  int num_host_threads() const override { return 1; }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) override {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
  }

 protected:
  void run(const EmbeddingArgs& args) override {
    const int64_t size = args.table.shape[1];
    const auto* rows = static_cast<const uint8_t*>(args.table.data);
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const int64_t index = row_of(args, args.ids.host[t]);
      const uint8_t* row = rows + std::max<int64_t>(index, 0) * row_stride(args);
      for (int64_t i = 0; i < size; ++i)
        args.out[t * size + i] = index < 0 ? 0.0f : stored_value(args.table.dtype, row, i);
    }
  }

  void run(const RmsNormArgs& args) override {
    const int64_t stride = args.token_stride == 0 ? args.num_groups * args.size : args.token_stride;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t g = 0; g < args.num_groups; ++g) {
        const int64_t at = t * stride + g * args.size;
        const int64_t delta_at = (t * args.num_groups + g) * args.size;
        double squares = 0;
        for (int64_t i = 0; i < args.size; ++i) {
          float& value = args.hidden[at + i];
          if (args.delta != nullptr) value = std::fma(args.delta[delta_at + i], args.delta_scale, value);
          squares += static_cast<double>(value) * value;
        }
        const double scale = 1.0 / std::sqrt(squares / static_cast<double>(args.size) + static_cast<double>(args.eps));
        for (int64_t i = 0; i < args.size; ++i) store(args.out, at + i, args.hidden[at + i] * scale * args.weight[i]);
      }
    }
  }

  void run(const LayerNormArgs& args) override {
    const auto size = static_cast<double>(args.size);
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      float* hidden = args.hidden + t * args.size;
      double mean = 0;
      for (int64_t i = 0; i < args.size; ++i) {
        if (args.delta != nullptr) hidden[i] += args.delta[t * args.size + i];
        mean += hidden[i] / size;
      }
      double variance = 0;
      for (int64_t i = 0; i < args.size; ++i) variance += (hidden[i] - mean) * (hidden[i] - mean) / size;
      for (int64_t i = 0; i < args.size; ++i) {
        const double normalised = (hidden[i] - mean) / std::sqrt(variance + static_cast<double>(args.eps));
        const double weight = args.weight == nullptr ? 1.0 : args.weight[i];
        const double bias = args.bias == nullptr ? 0.0 : args.bias[i];
        args.out[t * args.size + i] = static_cast<float>(normalised * weight + bias);
      }
    }
  }

  void run(const AddArgs& args) override {
    for (int64_t i = 0; i < args.num_tokens * args.size; ++i)
      args.hidden[i] = std::fma(args.delta[i], args.delta_scale, args.hidden[i]);
  }

  void run(const ScaleArgs& args) override {
    for (int64_t i = 0; i < args.num_rows * args.size; ++i) {
      const double value = capped(static_cast<double>(args.values[i]) * args.scale, args.soft_cap);
      const double limit = args.limit;
      const bool is_cut = args.limit > 0 && std::abs(value) > limit;
      args.values[i] = static_cast<float>(is_cut ? std::copysign(limit, value) : value);
    }
  }

  // A number in a format is decoded once and not for every product: that, not the sums, would take most of the time.
  void run(const LinearArgs& args) override {
    const auto& weight = static_cast<const StoredMatrix&>(*args.weight);
    const int64_t columns = weight.columns();
    std::vector<double> x;
    x.reserve(static_cast<size_t>(args.num_rows * columns));
    for (int64_t m = 0; m < args.num_rows; ++m) {
      std::vector<float> given;
      for (int64_t k = 0; k < columns; ++k) given.push_back(static_cast<float>(number(args.x, m * args.x_stride + k)));
      std::vector<float> formed(given.size());
      form_input(weight.input(), given.data(), columns, formed.data());
      x.insert(x.end(), formed.begin(), formed.end());
    }
    std::vector<double> row(static_cast<size_t>(columns));
    for (int64_t n = 0; n < weight.rows() && args.num_rows > 0; ++n) {
      for (int64_t k = 0; k < columns; ++k) row[static_cast<size_t>(k)] = weight.value(n, k);
      for (int64_t m = 0; m < args.num_rows; ++m) {
        const double* factors = x.data() + m * columns;
        double sum = 0;
        for (int64_t k = 0; k < columns; ++k) sum += factors[k] * row[static_cast<size_t>(k)];
        if (args.bias != nullptr) sum += args.bias[n];
        store(args.out, m * args.out_stride + n, sum);
      }
    }
  }

  void run(const GatedLinearArgs& args) override { run_in_steps(args); }
  void run(const AdaptedLinearArgs& args) override { run_in_steps(args); }

  void run(const LowRankArgs& args) override {
    QUIRE_CHECK_MSG(args.rows.of_token == nullptr, "rows of a device with memory of its own");
    for (const LowRankRun& run : args.runs) {
      for (int64_t row = run.row; row < run.row + run.num_rows; ++row) {
        for (const LowRankPart& part : run.factors->parts) add_low_rank(args, run, part, row);
        if (run.factors->replaces) replace_row(args, run, row);
      }
    }
  }

  void run(const RopeArgs& args) override {
    const int32_t half = args.rotary_dim / 2;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const float* cosines = args.table + int64_t{args.positions.host[t]} * args.rotary_dim;
      const float* sines = cosines + half;
      for (int32_t h = 0; h < args.num_heads; ++h) {
        float* head = args.heads + t * args.token_stride + int64_t{h} * args.head_dim;
        for (int32_t i = 0; i < half; ++i) {
          float& a = args.interleaved ? head[2 * i] : head[i];
          float& b = args.interleaved ? head[2 * i + 1] : head[i + half];
          const double x = a;
          const double y = b;
          a = static_cast<float>(x * cosines[i] - y * sines[i]);
          b = static_cast<float>(x * sines[i] + y * cosines[i]);
        }
      }
    }
  }

  void run(const KvWriteArgs& args) override {
    const KvCacheView& cache = args.cache;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      if (args.slots.host[t] == kNoSlot) continue;
      for (int32_t h = 0; h < cache.num_kv_heads; ++h) {
        const int64_t from = t * args.token_stride + int64_t{h} * cache.head_dim;
        reference::store_kv(cache, /*is_key=*/true, args.slots.host[t], h, args.keys + from);
        if (!cache.values_are_keys)
          reference::store_kv(cache, /*is_key=*/false, args.slots.host[t], h, args.values + from);
      }
    }
  }

  void run(const CopyBlocksArgs& args) override {
    const int64_t size = args.source.bytes;
    for (int64_t i = 0; i < args.num_copies; ++i) {
      for (size_t part = 0; part < static_cast<size_t>(args.source.num_parts()); ++part) {
        std::memcpy(static_cast<uint8_t*>(args.destination.parts[part]) + args.copies[i].destination * size,
                    static_cast<const uint8_t*>(args.source.parts[part]) + args.copies[i].source * size,
                    static_cast<size_t>(size));
      }
    }
  }

  void run(const PagedAttentionArgs& args) override {
    for (int32_t s = 0; s < args.num_sequences; ++s) {
      if (args.query_offsets.host[s] == args.query_offsets.host[s + 1]) continue;
      for (int32_t h = 0; h < args.cache.num_kv_heads; ++h) attend(args, s, h);
    }
  }

  void run(const ActivationArgs& args) override {
    const int64_t in_size = args.gated ? 2 * args.size : args.size;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const Rows in = args.in.from(t * in_size);
      for (int64_t i = 0; i < args.size; ++i) {
        const double up = args.gated ? number(in, args.size + i) : 1.0;
        store(args.out, t * args.size + i, activated(args.function, number(in, i)) * up);
      }
    }
  }

  void run(const CopyHeadsArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t h = 0; h < args.num_heads; ++h) {
        for (int64_t i = 0; i < args.size; ++i) {
          args.out[t * args.out_token_stride + h * args.out_head_stride + i] =
              args.in[t * args.in_token_stride + h * args.in_head_stride + i];
        }
      }
    }
  }

  void run(const XieluArgs& args) override {
    const double beta = args.beta;
    for (int64_t i = 0; i < args.num_tokens * args.size; ++i) {
      const double x = args.values[i];
      const double below = args.negative * (std::expm1(std::min<double>(x, args.eps)) - x);
      args.values[i] = static_cast<float>((x > 0 ? args.positive * x * x : below) + beta * x);
    }
  }

  void run(const GateArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t i = 0; i < args.size; ++i) {
        float& value = args.values[t * args.value_stride + i];
        value = static_cast<float>(value * activated(args.function, args.gates[t * args.gate_stride + i]));
      }
    }
  }

  void run(const ShortConvArgs& args) override { reference::convolve(args); }
  void run(const RecurrenceArgs& args) override { reference::apply_recurrence(args); }

  void run(const MoeRoutingArgs& args) override { reference::route(args); }

  void run(const GroupedLinearArgs& args) override {
    check_offsets(args);
    for (int32_t g = 0; g < args.weights->size(); ++g) {
      const int64_t first = first_row(args, g);
      run(LinearArgs{.x = x_row(args, g, first),
                     .x_stride = args.x_stride,
                     .num_rows = first_row(args, g + 1) - first,
                     .weight = &(*args.weights)[g],
                     .bias = args.bias == nullptr ? nullptr : args.bias + g * args.bias_stride,
                     .out = out_row(args, g, first),
                     .out_stride = args.out_stride});
    }
  }

  void run(const ClampedSwigluArgs& args) override {
    const double limit = args.limit;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t i = 0; i < args.size; ++i) {
        const double gate = std::min<double>(args.in[t * 2 * args.size + i], limit);
        const double up = std::clamp<double>(args.in[(t * 2 + 1) * args.size + i], -limit, limit);
        args.out[t * args.size + i] =
            static_cast<float>((up + 1.0) * gate / (1.0 + std::exp(-static_cast<double>(args.alpha) * gate)));
      }
    }
  }

  void run(const PrepareHeadsArgs& args) override {
    const auto normalise = [&](int32_t first_head, int32_t num_heads, const float* weight) {
      float* heads = args.heads + int64_t{first_head} * args.cache.head_dim;
      if (weight == nullptr) return;
      run(RmsNormArgs{.hidden = heads,
                      .weight = weight,
                      .eps = args.eps,
                      .num_tokens = args.num_tokens,
                      .num_groups = num_heads,
                      .size = args.cache.head_dim,
                      .token_stride = args.token_stride,
                      .out = heads});
    };
    normalise(0, args.num_heads, args.query_weight);
    normalise(args.num_heads, args.cache.num_kv_heads, args.key_weight);
    if (args.rotary_dim > 0) run(rotation_of(args));
    run(write_of(args));
  }

  void run(const EditLogitsArgs& args) override {
    for (int64_t t = 0; t < args.num_rows; ++t) edit_logits(args, t);
  }

  void run(const TopLogprobsArgs& args) override {
    for (int64_t t = 0; t < args.num_rows; ++t) top_logprobs(args, t);
  }

  void run(const PlaceTokensArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) place_token(args, t);
  }

  void run(const ChooseTokensArgs& args) override {
    for (int64_t t = 0; t < args.num_rows; ++t)
      args.tokens[t] = choose_token(args.in + t * args.size, args.size, args.choices.host[t]);
  }

  void run(const MoeCombineArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t i = 0; i < args.size; ++i) {
        double sum = 0;
        for (int64_t pair = t * args.experts_per_token; pair < (t + 1) * args.experts_per_token; ++pair)
          sum += static_cast<double>(args.weights[pair]) * args.experts[args.rows[pair] * args.size + i];
        if (args.shared != nullptr) {
          const double gate = args.shared_gate == nullptr ? 1.0 : 1.0 / (1.0 + std::exp(-args.shared_gate[t]));
          sum += gate * args.shared[t * args.size + i];
        }
        args.out[t * args.size + i] = static_cast<float>(sum);
      }
    }
  }

  void run(const GatherRowsArgs& args) override {
    for (int64_t i = 0; i < args.num_rows; ++i) {
      for (int64_t j = 0; j < args.size; ++j) args.out[i * args.size + j] = args.in[args.rows.host[i] * args.size + j];
    }
  }

 private:
  static double shrunk(const LowRankArgs& args, const LowRankRun& run, int32_t r, int64_t row) {
    const LowRankFactors& factors = *run.factors;
    if (args.x == nullptr) {
      int64_t id = args.ids.host[row];
      if (!factors.only.empty()) id = std::ranges::find(factors.only, id) - factors.only.begin();
      return stored_value(factors.dtype, factors.down, id * factors.rank + r);
    }
    double sum = 0;
    for (int64_t k = 0; k < factors.in_features; ++k) {
      sum += static_cast<double>(args.x[row * args.x_stride + run.x_column + k]) *
             stored_value(factors.dtype, factors.down, r * factors.in_features + k);
    }
    return sum;
  }
  static void replace_row(const LowRankArgs& args, const LowRankRun& run, int64_t row) {
    const LowRankFactors& factors = *run.factors;
    const bool some = !factors.only.empty();
    if (some && args.x == nullptr && !std::ranges::binary_search(factors.only, args.ids.host[row])) return;
    for (int32_t n = 0; n < factors.rank; ++n) {
      const int32_t column = some && args.x != nullptr ? factors.only[static_cast<size_t>(n)] : n;
      args.out[row * args.out_stride + run.out_column + column] = static_cast<float>(shrunk(args, run, n, row));
    }
  }
  static void add_low_rank(const LowRankArgs& args, const LowRankRun& run, const LowRankPart& part, int64_t row) {
    std::vector<double> inner;
    for (int32_t r = 0; r < part.rank; ++r) inner.push_back(shrunk(args, run, part.first + r, row));
    for (int64_t n = 0; n < part.size; ++n) {
      double sum = 0;
      for (int32_t r = 0; r < part.rank; ++r) {
        const int64_t at = low_rank_up_place(n, r, part.rank, run.factors->dtype == DType::kBF16);
        sum += inner[static_cast<size_t>(r)] * stored_value(run.factors->dtype, part.up, at);
      }
      float& out = args.out[row * args.out_stride + run.out_column + part.column + n];
      sum = out + part.scale * sum;
      out = static_cast<float>(part.gain == nullptr ? sum : part.gain[n] * sum + part.shift[n]);
    }
  }

  static double number(const Rows& rows, int64_t index) {
    return rows.dtype == DType::kF32
               ? rows.floats()[index]
               : reference::code_to_float(rows.dtype, static_cast<const uint16_t*>(rows.data)[index]);
  }
  static void store(const OutRows& rows, int64_t index, double value) {
    const auto rounded = static_cast<float>(value);
    if (rows.dtype == DType::kF32) {
      rows.floats()[index] = rounded;
    } else {
      static_cast<uint16_t*>(rows.data)[index] = static_cast<uint16_t>(reference::float_to_code(rows.dtype, rounded));
    }
  }

  static double activated(Activation function, double x) {
    switch (function) {
      case Activation::kSilu:
        return x / (1.0 + std::exp(-x));
      case Activation::kGelu:
        return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
      case Activation::kGeluTanh:
        return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
      case Activation::kQuickGelu:
        return x / (1.0 + std::exp(-1.702 * x));
      case Activation::kRelu:
        return x < 0 ? 0.0 : x;
      case Activation::kRelu2:
        return x < 0 ? 0.0 : x * x;
      case Activation::kSigmoid:
        return 1.0 / (1.0 + std::exp(-x));
      case Activation::kIdentity:
        return x;
    }
    return 0;
  }
  static double capped(double x, double soft_cap) { return soft_cap > 0 ? soft_cap * std::tanh(x / soft_cap) : x; }

  // What one kv head keeps of a sequence's positions first to end, as numbers.
  struct Context {
    int64_t first = 0;
    int64_t count = 0;
    std::vector<double> keys;    // [head_dim, count]
    std::vector<double> values;  // [count, head_dim]
  };

  static Context context_of(const PagedAttentionArgs& args, int32_t sequence, int32_t kv_head) {
    const KvCacheView& cache = args.cache;
    const BlockId* table = args.block_tables.host + sequence * args.block_table_stride;
    const int64_t end = args.context_lengths.host[sequence];
    const int64_t position = end - (args.query_offsets.host[sequence + 1] - args.query_offsets.host[sequence]);
    Context context;
    // Blocks before the first query's window may have been given back.
    if (args.window > 0) context.first = std::max<int64_t>(0, position - args.window + 1);
    context.count = end - context.first;
    context.keys.resize(static_cast<size_t>(context.count * cache.head_dim));
    context.values.resize(context.keys.size());
    for (int64_t i = 0; i < context.count; ++i) {
      const int64_t p = context.first + i;
      const int64_t slot = int64_t{table[p / cache.block_size]} * cache.block_size + p % cache.block_size;
      for (int32_t d = 0; d < cache.head_dim; ++d) {
        context.keys[static_cast<size_t>(d * context.count + i)] = reference::load_kv(cache, true, slot, kv_head, d);
        context.values[static_cast<size_t>(i * cache.head_dim + d)] =
            reference::load_kv(cache, false, slot, kv_head, d);
      }
    }
    return context;
  }

  // The heads of a sequence's queries that one kv head serves.
  static void attend(const PagedAttentionArgs& args, int32_t sequence, int32_t kv_head) {
    const Context context = context_of(args, sequence, kv_head);
    const int32_t group = heads_of_group(args);
    const int32_t first = std::max(0, kv_head * group - args.heads_before);
    const int32_t end = std::min(args.num_heads, (kv_head + 1) * group - args.heads_before);
    for (int32_t t = args.query_offsets.host[sequence]; t < args.query_offsets.host[sequence + 1]; ++t) {
      const int64_t position = args.context_lengths.host[sequence] - (args.query_offsets.host[sequence + 1] - t);
      for (int32_t h = first; h < end; ++h) attend(args, context, t, h, position);
    }
  }

  // One head of one query: scores, softmax, weighted sum of the values.
  static void attend(const PagedAttentionArgs& args, const Context& context, int32_t token, int32_t head,
                     int64_t position) {
    const int32_t head_dim = args.cache.head_dim;
    const float* query = args.queries + token * args.query_stride + int64_t{head} * head_dim;
    const int64_t window_first = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : int64_t{0};
    const int64_t begin = window_first - context.first;
    const int64_t last = last_seen(args, position, context.first + context.count);
    const auto count = static_cast<size_t>(last + 1 - window_first);

    std::vector<double> weights(count, 0.0);
    for (int32_t d = 0; d < head_dim; ++d) {
      const double* keys = context.keys.data() + d * context.count + begin;
      for (size_t i = 0; i < count; ++i) weights[i] += static_cast<double>(query[d]) * keys[i];
    }
    double maximum = -std::numeric_limits<double>::infinity();
    for (double& weight : weights) {
      weight = capped(weight * args.scale, args.soft_cap);
      maximum = std::max(maximum, weight);
    }
    double total = 0;
    if (args.sinks != nullptr) {
      const double sink = args.sinks[head];
      maximum = std::max(maximum, sink);
      total = std::exp(sink - maximum);
    }
    for (double& weight : weights) total += weight = std::exp(weight - maximum);

    std::vector<double> sums(static_cast<size_t>(head_dim), 0.0);
    for (size_t i = 0; i < count; ++i) {
      const double* values = context.values.data() + (begin + static_cast<int64_t>(i)) * head_dim;
      for (size_t d = 0; d < sums.size(); ++d) sums[d] += weights[i] * values[d];
    }
    float* out = args.out + (int64_t{token} * args.num_heads + head) * head_dim;
    for (size_t d = 0; d < sums.size(); ++d) out[d] = static_cast<float>(sums[d] / total);
  }

  HeapAllocator allocator_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace quire::ops
