// One generation request on its way out: pulls from its completions whatever the client has room for, as a stream of
// events or gathered into one answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/output.h"
#include "server/http.h"
#include "server/load.h"
#include "server/openai_format.h"

namespace quire::server {

struct Delivery {
  bool include_usage = false;
  bool continuous_usage = false;
  std::shared_ptr<Load> load;
  std::unique_ptr<LoadTicket> ticket;  // given back when the last answer is there
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Completions in the order of the choices' indexes: n of them for each prompt.
  Generation(std::shared_ptr<Exchange> exchange, AnswerContext context, std::vector<PreparedPrompt> prompts,
             std::vector<std::unique_ptr<engine::Completion>> completions, Delivery delivery);

  // Any thread; once. From here on the exchange keeps it alive until the answer is out or the client gone.
  void start();

 private:
  // What all choices of one prompt have in common; the first brings it.
  struct Shared {
    std::optional<int32_t> num_cached_tokens;
    std::vector<PositionLogprobs> logprobs;  // of the prompt, if asked for
    bool known = false;                      // the choice that brings them has said something
  };
  struct Choice {
    ChoiceProgress progress;
    size_t prompt = 0;
    std::unique_ptr<engine::Completion> completion;  // nullptr once finished
    engine::OutputDelta collected;                   // of a whole answer
  };

  void begin();
  void wake();
  void pump();
  bool take(Choice& choice);  // false: the request failed
  bool waits(const Choice& choice) const;
  void note_prompt(const Choice& choice, engine::OutputDelta& delta);
  void give(Choice& choice, engine::OutputDelta delta);
  void fail(const Status& error);
  void send_stream();
  void send_whole();
  boost::json::value usage_of(const Choice& choice) const;
  boost::json::object total_usage() const;

  std::shared_ptr<Exchange> exchange_;
  const AnswerFormat format_;
  const std::vector<PreparedPrompt> prompts_;
  std::vector<Choice> choices_;
  std::vector<Shared> shared_;  // by prompt; its elements never move
  Delivery delivery_;

  std::atomic<bool> woken_{false};
  // On the connection's strand.
  std::string out_;  // events not yet written
  size_t unfinished_;
  bool prompt_became_known_ = false;
  size_t next_choice_ = 0;  // where the next round begins, so that no choice waits for ever behind another
  bool writing_ = false;
  bool last_written_ = false;  // [DONE] is among what was given to the connection
  bool aborted_ = false;       // the server is stopping
  bool over_ = false;
};

}  // namespace quire::server
