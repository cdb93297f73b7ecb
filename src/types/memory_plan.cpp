#include "types/memory_plan.h"

#include <fmt/format.h>

namespace quire {

std::string format_bytes(int64_t bytes) {
  const double n = static_cast<double>(bytes);
  if (n >= 1024.0 * 1024 * 1024) return fmt::format("{:.2f} GiB", n / (1024.0 * 1024 * 1024));
  if (n >= 1024.0 * 1024) return fmt::format("{:.1f} MiB", n / (1024.0 * 1024));
  if (n >= 1024.0) return fmt::format("{:.1f} KiB", n / 1024.0);
  return fmt::format("{} B", bytes);
}

std::string MemoryPlan::to_string() const {
  std::string text;
  text += fmt::format("weights      {:>12}\n", format_bytes(weight_bytes));
  text += fmt::format("workspace    {:>12}  activations, logits and scratch of the largest step\n",
                      format_bytes(workspace_bytes));
  text += fmt::format("KV pool      {:>12}  {} blocks x {} ({} tokens x {} a token)", format_bytes(kv_bytes),
                      num_blocks, format_bytes(block_bytes), block_size, format_bytes(kv_bytes_per_token));
  if (free_bytes > 0) {
    text +=
        fmt::format(", out of {:.0f} % of the {} that were free", memory_utilization * 100, format_bytes(free_bytes));
  }
  text += fmt::format("\nKV tokens    {:>12}  {} sequences of {} tokens at once\n", kv_tokens(),
                      sequences_of(max_model_len), max_model_len);
  return text;
}

}  // namespace quire
