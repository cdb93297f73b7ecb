#include "quantize/gptq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "quantize/round_blocks.h"
#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

constexpr int64_t kRowsAtOnce = 1024;  // of inputs, to be multiplied by themselves
constexpr int64_t kBlock = 64;         // of columns, in factors and updates
constexpr int64_t kRowsTogether = 8;   // of weights, which read a row of the factor together
constexpr int64_t kDotLanes = 8;

float dot(const float* x, const float* y, int64_t count) {
  std::array<float, kDotLanes> lanes{};
  int64_t i = 0;
  for (; i + kDotLanes <= count; i += kDotLanes) {
    for (int64_t lane = 0; lane < kDotLanes; ++lane) lanes[static_cast<size_t>(lane)] += x[i + lane] * y[i + lane];
  }
  float sum = std::accumulate(lanes.begin(), lanes.end(), 0.0f);
  for (; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

void add_scaled(float factor, const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] += factor * x[i];
}

// The lower factor of a positive definite matrix [n, n], in its place; false where it is none.
bool factor_lower(float* a, int64_t n, ThreadPool& threads) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = begin; j <= i; ++j) {
        const float rest = a[i * n + j] - dot(a + i * n + begin, a + j * n + begin, j - begin);
        if (j < i) {
          a[i * n + j] = rest / a[j * n + j];
        } else if (rest > 0) {
          a[i * n + i] = std::sqrt(rest);
        } else {
          return false;
        }
      }
    }
    threads.parallel_for(n - end, [&](int64_t task, int /*thread*/) {
      const int64_t i = end + task;
      for (int64_t j = begin; j < end; ++j) {
        a[i * n + j] = (a[i * n + j] - dot(a + i * n + begin, a + j * n + begin, j - begin)) / a[j * n + j];
      }
    });
    threads.parallel_for(n - end, [&](int64_t task, int /*thread*/) {
      const int64_t i = n - 1 - task;  // the longest rows first
      for (int64_t j = end; j <= i; ++j) a[i * n + j] -= dot(a + i * n + begin, a + j * n + begin, end - begin);
    });
  }
  return true;
}

// The inverse of a lower factor, which is lower, too; zeros above.
std::vector<float> inverse_of_lower(const float* a, int64_t n, ThreadPool& threads) {
  std::vector<float> out(static_cast<size_t>(n * n), 0.0f);
  const int64_t num_blocks = (n + kBlock - 1) / kBlock;
  threads.parallel_for(num_blocks, [&](int64_t block, int /*thread*/) {
    const int64_t begin = block * kBlock;
    const int64_t width = std::min(kBlock, n - begin);
    for (int64_t i = begin; i < n; ++i) {
      float* row = out.data() + i * n + begin;
      if (i < begin + width) row[i - begin] = 1;
      for (int64_t j = begin; j < i; ++j) add_scaled(-a[i * n + j], out.data() + j * n + begin, width, row);
      for (int64_t k = 0; k < width; ++k) row[k] /= a[i * n + i];
    }
  });
  return out;
}

// Upper U with U^T U the inverse of the damped Hessian, columns in `order`. Column k of the matrix that is rounded is
// made up for by row k of it.
Result<std::vector<float>> make_factor(const std::vector<float>& hessian, const std::vector<int64_t>& order,
                                       double damping, ThreadPool& threads) {
  const std::ptrdiff_t n = std::ssize(order);
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(hessian[static_cast<size_t>(i * n + i)]);
  mean /= static_cast<double>(std::max<int64_t>(n, 1));
  for (double share = damping; share <= 1; share *= 10) {
    // Turned round, the lower factor's inverse is the upper one that is wanted, turned round.
    std::vector<float> turned(hessian.size());
    threads.parallel_for(n, [&](int64_t i, int /*thread*/) {
      const int64_t from = order[static_cast<size_t>(n - 1 - i)];
      for (int64_t j = 0; j < n; ++j)
        turned[static_cast<size_t>(i * n + j)] =
            hessian[static_cast<size_t>(from * n + order[static_cast<size_t>(n - 1 - j)])];
      turned[static_cast<size_t>(i * n + i)] += static_cast<float>(share * mean + 1e-12);
    });
    if (!factor_lower(turned.data(), n, threads)) continue;
    std::vector<float> inverse = inverse_of_lower(turned.data(), n, threads);
    std::ranges::reverse(inverse);
    return inverse;
  }
  return internal_error("the Hessian of {} columns has no factor, whatever is added to its diagonal", n);
}

// What the rounding of some rows needs.
struct Job {
  int64_t columns;
  const GptqOptions& options;
  const std::vector<int64_t>& order;
  const std::vector<float>& factor;  // empty: nothing is made up for
  float low;
  float high;
};

// Rows [0, count) of weights in order, which are used up; scales and codes by the columns' own places.
double round_rows(const Job& job, int64_t count, float* w, const float* scales, int8_t* codes) {
  const int64_t n = job.columns;
  const int64_t groups = n / job.options.group_size;
  double loss = 0;
  std::vector<float> errors(static_cast<size_t>(count * kBlock));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    for (int64_t k = begin; k < end; ++k) {
      const int64_t column = job.order[static_cast<size_t>(k)];
      const float* factor = job.factor.empty() ? nullptr : job.factor.data() + k * n;
      for (int64_t row = 0; row < count; ++row) {
        const float scale = scales[row * groups + column / job.options.group_size];
        const float x = w[row * n + k];
        const float code = scale == 0 ? 0 : std::clamp(std::nearbyint(x / scale), job.low, job.high);
        codes[row * n + column] = static_cast<int8_t>(code);
        const float off = x - scale * code;
        if (factor == nullptr) continue;
        const float error = off / factor[k];
        loss += static_cast<double>(error) * static_cast<double>(error);
        errors[static_cast<size_t>(row * kBlock + k - begin)] = error;
        add_scaled(-error, factor + k + 1, end - k - 1, w + row * n + k + 1);
      }
    }
    if (job.factor.empty() || end == n) continue;
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t row = 0; row < count; ++row) {
        add_scaled(-errors[static_cast<size_t>(row * kBlock + k - begin)], job.factor.data() + k * n + end, n - end,
                   w + row * n + end);
      }
    }
  }
  return loss;
}

}  // namespace

Hessian::Hessian(ops::Backend& backend, int64_t columns)
    : backend_(backend),
      columns_(columns),
      turned_(static_cast<size_t>(columns * kRowsAtOnce)),
      product_(static_cast<size_t>(columns * columns)),
      sum_(static_cast<size_t>(columns * columns), 0.0f) {}

void Hessian::add(const ops::ConstView& x) {
  QUIRE_CHECK(x.num_columns == columns_);
  std::vector<float> row(static_cast<size_t>(columns_));
  for (int64_t i = 0; i < x.num_rows; ++i) {
    const auto* stored = static_cast<const uint8_t*>(x.data) + row_bytes(x.dtype, i * x.row_stride);
    read_stored_row(x.dtype, stored, columns_, row.data());
    for (int64_t k = 0; k < columns_; ++k)
      turned_[static_cast<size_t>(k * kRowsAtOnce + held_)] = row[static_cast<size_t>(k)];
    ++num_rows_;
    if (++held_ == kRowsAtOnce && failure_.ok()) failure_ = multiply();
  }
}

// Columns by columns: the rows that are held, turned, are inputs and weight of one product.
Status Hessian::multiply() {
  const TensorView columns{turned_.data(), DType::kF32, {columns_, kRowsAtOnce}};
  QUIRE_ASSIGN_OR_RETURN(const auto weight, backend_.pack(std::span(&columns, 1)));
  const ops::View out(product_.data(), columns_, columns_);
  backend_(ops::LinearArgs{.x = ops::View(turned_.data(), columns_, kRowsAtOnce),
                           .x_stride = kRowsAtOnce,
                           .num_rows = columns_,
                           .weight = weight.get(),
                           .out = out,
                           .out_stride = columns_,
                           .precise = true});
  backend_.synchronise();
  for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += product_[i];
  std::ranges::fill(turned_, 0.0f);
  held_ = 0;
  return {};
}

Result<std::vector<float>> Hessian::take() {
  if (held_ > 0 && failure_.ok()) failure_ = multiply();
  QUIRE_RETURN_IF_ERROR(failure_);
  for (float& x : sum_) x /= static_cast<float>(std::max<int64_t>(num_rows_, 1));
  turned_ = {};
  product_ = {};
  return std::move(sum_);
}

Result<CodedRows> gptq_round(std::span<const float> weight, int64_t rows, int64_t columns, std::vector<float> hessian,
                             const GptqOptions& options, ThreadPool& threads) {
  QUIRE_CHECK(columns % options.group_size == 0 && std::ssize(weight) == rows * columns);
  QUIRE_CHECK(hessian.empty() || std::ssize(hessian) == columns * columns);
  std::vector<float> importance;
  std::vector<int64_t> order(static_cast<size_t>(columns));
  std::iota(order.begin(), order.end(), 0);
  std::vector<float> factor;
  if (!hessian.empty()) {
    for (int64_t k = 0; k < columns; ++k) importance.push_back(hessian[static_cast<size_t>(k * columns + k)]);
    std::ranges::stable_sort(order, [&](int64_t one, int64_t other) {
      return importance[static_cast<size_t>(one)] > importance[static_cast<size_t>(other)];
    });
    QUIRE_ASSIGN_OR_RETURN(factor, make_factor(hessian, order, options.damping, threads));
    hessian = {};
  }
  const int64_t groups = columns / options.group_size;
  CodedRows out{.codes = std::vector<int8_t>(weight.size()),
                .scales = std::vector<float>(static_cast<size_t>(rows * groups))};
  const auto levels = static_cast<float>(1 << (options.bits - 1));
  const Job job{columns, options, order, factor, -levels, levels - 1};
  const int64_t num_tasks = (rows + kRowsTogether - 1) / kRowsTogether;
  std::vector<double> losses(static_cast<size_t>(num_tasks));
  threads.parallel_for(num_tasks, [&](int64_t task, int /*thread*/) {
    const int64_t first = task * kRowsTogether;
    const int64_t count = std::min(kRowsTogether, rows - first);
    std::vector<float> w(static_cast<size_t>(count * columns));
    for (int64_t row = 0; row < count; ++row) {
      const auto values = weight.subspan(static_cast<size_t>((first + row) * columns), static_cast<size_t>(columns));
      for (int64_t g = 0; g < groups; ++g) {
        const auto begin = static_cast<size_t>(g * options.group_size);
        const auto size = static_cast<size_t>(options.group_size);
        const auto weights = importance.empty() ? std::span<const float>() : std::span(importance).subspan(begin, size);
        const float scale = symmetric_scale(values.subspan(begin, size), weights, options.bits);
        out.scales[static_cast<size_t>((first + row) * groups + g)] = options.stored_scale(scale);
      }
      for (int64_t k = 0; k < columns; ++k)
        w[static_cast<size_t>(row * columns + k)] = values[static_cast<size_t>(order[static_cast<size_t>(k)])];
    }
    losses[static_cast<size_t>(task)] =
        round_rows(job, count, w.data(), out.scales.data() + first * groups, out.codes.data() + first * columns);
  });
  out.loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  return out;
}

}  // namespace quire::quantize
