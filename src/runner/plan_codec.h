// Steps as bytes, for executors whose workers live in other processes.
//
// A message is a header (the letters "QUIR", the version and the kind of the message, 16 bits each) and its fields in
// the order in which the structs declare them: numbers little-endian and of their own width, flags and enums a byte,
// lists and texts behind a 32-bit count, optional values behind a flag.
//
// A request's parameters, which may hold lists of the size of a vocabulary, are written once, with the first sequence
// that has them, and named by a number from then on: by those that come in the same plan or later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "runner/executor.h"
#include "types/kv_offload.h"
#include "types/step_plan.h"

namespace quire::runner {

// Raised with every change of what is written. Both sides must be of one version.
inline constexpr uint16_t kPlanCodecVersion = 14;

// What a worker asks of an engine while it samples: how far the tokens of an answer go along with its constraint.
struct MaskQuestion {
  ConstraintId constraint = 0;
  uint64_t answer = 0;          // whose tokens these are: a number of the worker's
  bool forget = false;          // the answer is over; nothing else counts
  std::vector<TokenId> tokens;  // all of the answer's
  uint32_t num_words = 0;       // of the mask behind them; 0: it is not asked for
};

struct MaskAnswer {
  bool found = false;         // the constraint is one that the engine has
  uint64_t num_accepted = 0;  // tokens, from the first on
  bool restricts = false;     // else every token may follow
  std::vector<uint32_t> mask;
  Status trouble;
};

// One channel's writing end: knows which parameters the other end has.
class PlanWriter {
 public:
  std::string write(const StepPlan& plan);
  size_t num_known() const { return known_.size(); }  // those that are nobody's any more may be among them

 private:
  struct Known {
    uint64_t number = 0;
    std::weak_ptr<const SamplingParams> params;
  };
  std::unordered_map<const SamplingParams*, Known> known_;
  uint64_t last_number_ = 0;
  size_t swept_size_ = 0;
};

// Its reading end, which reads what the writer wrote, in that order. Errors of read(): those below; nothing that comes
// behind one can be read.
class PlanReader {
 public:
  Result<StepPlan> read(std::string_view message);
  size_t num_known() const { return known_.size(); }

 private:
  std::unordered_map<uint64_t, std::shared_ptr<const SamplingParams>> known_;
};

// Of a channel that carries this alone.
std::string encode(const StepPlan& plan);
std::string encode(const Result<ExecutedStep>& step);
std::string encode(const MaskQuestion& question);
std::string encode(const MaskAnswer& answer);
std::string encode(const OffloadOrders& orders);
std::string encode(const OffloadReports& reports);

// Errors: data_loss where a message ends too early, goes on behind its end or holds what cannot be; invalid_argument
// where it is of another version, which says both. What is read takes memory in proportion to the message.
Result<StepPlan> decode_plan(std::string_view message);
// The step's own error is the inner one.
Result<Result<ExecutedStep>> decode_step(std::string_view message);
Result<MaskQuestion> decode_question(std::string_view message);
Result<MaskAnswer> decode_answer(std::string_view message);
Result<OffloadOrders> decode_orders(std::string_view message);
Result<OffloadReports> decode_reports(std::string_view message);

}  // namespace quire::runner
