// In how many pieces a step's logits are made.
#include <gmock/gmock.h>

#include "runner/worst_step.h"
#include "tests/runner/dry_backend.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using testing::ElementsAre;

// Notes the rows of every product that is as wide as the vocabulary.
class HeadWatcher final : public DryBackend {
 public:
  HeadWatcher(ops::Backend& real, int64_t logit_rows) : DryBackend(real), logit_rows_(logit_rows) {}
  int64_t logit_rows(int64_t /*vocab_size*/) const override { return logit_rows_; }
  void watch(int64_t vocab_size) { vocab_size_ = vocab_size; }
  const std::vector<int64_t>& rows() const { return rows_; }

 protected:
  using DryBackend::run;
  void run(const ops::LinearArgs& args) override {
    if (args.weight->rows() == vocab_size_) rows_.push_back(args.num_rows);
  }

 private:
  int64_t logit_rows_;
  int64_t vocab_size_ = 0;
  std::vector<int64_t> rows_;
};

// A step of prompts and one that decodes, each of so many sequences.
std::vector<int64_t> head_rows_of(int32_t sequences, int64_t logit_rows) {
  const auto real = ops::make_reference_backend();
  HeadWatcher backend(*real, logit_rows);
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama"));
  EngineConfig config{.max_num_seqs = sequences, .max_num_batched_tokens = 256};
  config.kv_cache_memory_bytes = 1 << 20;
  auto planned = plan_model(config, **checkpoint, backend, 0);
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  nn::Loader loader(nn::Loader::Mode::kLoad, **checkpoint, backend);
  auto model = planned->family.build(planned->config, planned->max_model_len, loader);
  backend.watch(planned->config.vocab_size);
  auto runner = ModelRunner::create(*planned, std::move(*model), backend);
  EXPECT_TRUE(runner.ok()) << runner.status().message();
  run_worst_steps(*planned, **runner);
  return backend.rows();
}

TEST(LogitRows, AreMadeInPiecesOfTheSizeThatTheBackendNames) {
  EXPECT_THAT(head_rows_of(100, 64), ElementsAre(64, 36, 64, 36));
  EXPECT_THAT(head_rows_of(100, 4096), ElementsAre(100, 100)) << "the head is read once a step";
  EXPECT_THAT(head_rows_of(5, 4096), ElementsAre(5, 5));
}

TEST(LogitRows, cudaTakesNoMoreThanAStepHasUseOf) {
  const auto backend = make_test_backend("cuda");
  if (backend == nullptr) GTEST_SKIP() << "there is no card";
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama"));
  EngineConfig config{.max_num_seqs = 256, .max_num_batched_tokens = 2048};
  config.kv_cache_memory_bytes = 1 << 20;
  EXPECT_EQ(plan_model(config, **checkpoint, *backend, 0)->logit_rows, 256) << "one for each sequence";
  config.max_num_seqs = 2;
  EXPECT_EQ(plan_model(config, **checkpoint, *backend, 0)->logit_rows, 64) << "some for log-probabilities of prompts";
  config.max_num_batched_tokens = 16;
  EXPECT_EQ(plan_model(config, **checkpoint, *backend, 0)->logit_rows, 16) << "of no more tokens than there are";
}

}  // namespace
}  // namespace quire::runner
