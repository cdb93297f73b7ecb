// One generation request on its way out: pulls from its completions whatever the client has room for, as a stream of
// events or gathered into one answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/output.h"
#include "server/http.h"
#include "server/openai_format.h"

namespace quire::server {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Completions in the order of the choices' indexes: n of them for each prompt.
  Generation(std::shared_ptr<Exchange> exchange, AnswerContext context, std::vector<PreparedPrompt> prompts,
             std::vector<std::unique_ptr<engine::Completion>> completions, bool include_usage, bool continuous_usage);

  // Any thread; once. From here on the exchange keeps it alive until the answer is out or the client gone.
  void start();

 private:
  struct Choice {
    ChoiceProgress progress;
    std::unique_ptr<engine::Completion> completion;  // nullptr once finished
    engine::OutputDelta collected;                   // of a whole answer
  };

  void begin();
  void wake();
  void pump();
  bool take(Choice& choice);  // false: the request failed
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
  const bool include_usage_;
  const bool continuous_usage_;

  std::atomic<bool> woken_{false};
  // On the connection's strand.
  std::string out_;  // events not yet written
  size_t unfinished_;
  size_t next_choice_ = 0;  // where the next round begins, so that no choice waits for ever behind another
  bool writing_ = false;
  bool last_written_ = false;  // [DONE] is among what was given to the connection
  bool aborted_ = false;       // the server is stopping
  bool over_ = false;
};

}  // namespace quire::server
