// One generation request on its way out: pulls from its completions whatever the client has room for, as a stream of
// events or gathered into one answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/output.h"
#include "server/answer.h"
#include "server/answer_writer.h"
#include "server/http.h"
#include "server/load.h"
#include "server/tenants.h"

namespace quire::server {

struct Delivery {
  bool stream = false;
  std::shared_ptr<Load> load;
  std::shared_ptr<LoadTicket> ticket;  // given back when the last answer is there
  std::shared_ptr<HeldBytes> memory;   // of what the answer may become; given back when it is on its way
  // Of a whole answer: has the prompt's blocks kept for another instance, and calls back once, on any thread, with what
  // the answer says of it, as JSON. nullptr: nobody asked.
  std::function<void(std::function<void(std::string)>)> hand_over = nullptr;
  Tenant* tenant = nullptr;  // whose account the answers go to; outlives the exchange
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Completions in the order of the choices' indexes: n of them for each prompt.
  Generation(std::shared_ptr<Exchange> exchange, std::unique_ptr<AnswerWriter> writer,
             std::vector<PreparedPrompt> prompts, std::vector<std::unique_ptr<engine::Completion>> completions,
             Delivery delivery);

  // Any thread; once. From here on the exchange keeps it alive until the answer is out or the client gone.
  void start();

 private:
  void begin();
  void drop();
  void wake();
  void pump();
  bool take(size_t index);  // false: the request failed
  bool waits(size_t index) const;
  PromptState& prompt_of(size_t index);
  void note_prompt(PromptState& prompt, engine::OutputDelta& delta);
  void count(int64_t num_tokens);
  void fail(const Status& error);
  void send_stream();
  void send_whole();
  void respond_whole();

  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<AnswerWriter> writer_;  // nullptr once a whole answer is written
  Answer answer_;
  std::vector<std::unique_ptr<engine::Completion>> completions_;  // by choice; nullptr once finished
  std::vector<engine::OutputDelta> collected_;                    // by choice, of a whole answer
  Delivery delivery_;

  std::atomic<bool> woken_{false};
  // On the connection's strand.
  std::string out_;  // events not yet written
  size_t unfinished_;
  bool prompt_became_known_ = false;
  size_t next_choice_ = 0;  // where the next round begins, so that no choice waits for ever behind another
  bool writing_ = false;
  bool last_written_ = false;  // the stream's end is among what was given to the connection
  bool aborted_ = false;       // the server is stopping
  bool over_ = false;
};

}  // namespace quire::server
