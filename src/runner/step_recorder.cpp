#include "runner/step_recorder.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace quire::runner {

// Each version has all calls of those before it.
void StepRecorder::forget_older(int32_t adapters) {
  if (adapters <= adapters_) return;
  adapters_ = adapters;
  const auto is_older = [](const auto& pass) { return adapters_of(pass.first) > 0; };
  if (std::ranges::none_of(passes_, is_older)) return;
  backend_.synchronise();  // the last replay may not be done
  std::erase_if(passes_, is_older);
  std::erase_if(refused_, [](const StepShape& shape) { return adapters_of(shape) > 0; });
}

std::optional<ops::View> StepRecorder::replay(const StepShape& shape, const nn::Batch& batch, uint64_t numbers) {
  forget_older(adapters_of(shape));
  if (numbers != numbers_) {
    backend_.synchronise();  // the last replay may not be done
    passes_.clear();
    numbers_ = numbers;
    return std::nullopt;
  }
  const auto found = passes_.find(shape);
  if (found == passes_.end()) return std::nullopt;
  const Pass& pass = found->second;
  if (pass.ops == nullptr) return std::nullopt;
  backend_.replay(*pass.ops, [&](ops::PagedAttentionArgs& args) {
    const auto at = std::ranges::find(pass.block_tables, args.block_tables.device) - pass.block_tables.begin();
    const nn::CacheGroup& group = batch.groups[static_cast<size_t>(at)];
    args.num_sequences = batch.num_sequences;
    args.query_offsets = batch.query_offsets;
    args.context_lengths = batch.context_lengths;
    args.block_tables = group.block_tables;
    args.block_table_stride = batch.block_table_stride;
    args.span_places = group.span_places;
    args.num_shared_spans = batch.num_shared_spans;
  });
  return pass.hidden;
}

void StepRecorder::record(const StepShape& shape, const nn::Batch& batch, uint64_t numbers,
                          FunctionRef<ops::View()> forward) {
  QUIRE_CHECK(numbers == numbers_);  // replay() was asked first
  const bool is_mixed = std::holds_alternative<MixedShape>(shape);
  if (in_step_ && passes_.contains(shape)) return;  // tried before
  if (full_ || refused_.contains(shape)) {
    if (!in_step_) return;
    if (!is_mixed) forward();  // as a backend does that records (Recorder::record())
    passes_.insert_or_assign(shape, Pass{});
    return;
  }
  Pass pass;
  for (const nn::CacheGroup& group : batch.groups) pass.block_tables.push_back(group.block_tables.device);
  auto ops = backend_.record([&] { pass.hidden = forward(); }, is_mixed);
  if (!ops.ok()) {
    tell(ops.status(), shape);
    if (in_step_) passes_.insert_or_assign(shape, Pass{});
    return;
  }
  pass.ops = std::move(*ops);
  passes_.insert_or_assign(shape, std::move(pass));
}

void StepRecorder::tell(const Status& refusal, const StepShape& shape) {
  if (refusal.code() == StatusCode::kResourceExhausted) {
    log_warning("steps are computed call by call whose shapes have not come up yet: {}", refusal.message());
    full_ = true;
    return;
  }
  if (refused_.empty()) log_warning("steps of a shape are computed call by call: {}", refusal.message());
  refused_.insert(shape);
}

}  // namespace quire::runner
