// Streams an answer to the terminal; Ctrl-C stops the answer, not the program.
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"
#include "engine/output.h"

namespace quire::cli {

// While it lives, SIGINT sets a flag instead of ending the program. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool interrupted();
  static void clear();
};

struct StreamedAnswer {
  std::string text;
  FinishReason finish = FinishReason::kNone;
  bool interrupted = false;
  int64_t num_tokens = 0;
  double first_token_seconds = 0;
  double decode_seconds = 0;  // from the first token to the last
  Status error;
};

// Prints text as it comes to standard output; where that is a terminal, its lines break between words.
StreamedAnswer stream_answer(engine::Completion& completion);

// "[37 prompt tokens, 0.12 s to the first, 64 tokens, 118.2 tok/s]"
std::string speed_line(int64_t num_prompt_tokens, const StreamedAnswer& answer);

}  // namespace quire::cli
