// The one way from a typed request to completions of the engine and a Generation that brings them to the client; what
// differs between endpoints is who parses the request and who writes the answer. All of it may take long (templates,
// tokenizing) and runs on worker threads. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/answer.h"
#include "server/answer_writer.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/load.h"
#include "server/openai_schema.h"
#include "server/pooling_answer.h"
#include "server/preparation_budget.h"
#include "server/server.h"
#include "server/shared_bytes.h"
#include "server/tenants.h"

namespace quire::server {

class Generator {
 public:
  // The writer of one request's answer with so many choices.
  using MakeWriter = std::function<std::unique_ptr<AnswerWriter>(AnswerContext context, size_t num_choices)>;

  // All must outlive it. Errors: invalid_argument (a generation config that cannot be read).
  static Result<std::unique_ptr<const Generator>> create(const ServerConfig& config, const ModelSource& model,
                                                         Tenants& tenants, engine::Engine& engine);
  // Waits for constraints that are being compiled for its requests.
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Each gives the exchange to a Generation, which answers it, or says why not and leaves it alone. A request whose
  // answer has a constraint waits for it to be compiled: then what is wrong is told later, by the writer.
  // id_prefix: of the answer's id: "chatcmpl-".
  // Errors: invalid_argument and not_found with param(); resource_exhausted; unimplemented; unavailable.
  Status start_chat(const std::shared_ptr<Exchange>& exchange, const ChatRequest& request, std::string_view id_prefix,
                    const MakeWriter& make_writer) const;
  Status start_completion(const std::shared_ptr<Exchange>& exchange, const CompletionRequest& request,
                          std::string_view id_prefix, const MakeWriter& make_writer) const;

  // Gives the exchange to a PoolingAnswer, which answers it, or says why not and leaves it alone. Of the work's options
  // label, tenant and weight are filled in here. Errors: as above; those of the first text that is refused, with
  // `field` as their param().
  Status start_pooling(const std::shared_ptr<Exchange>& exchange, PoolingWork work, const char* field) const;
  // A text's tokens for pooling: what is longer than `most` is cut to that; unset: as long as it is, or a token more
  // than the context, which is then refused. Errors: also invalid_argument: the budget is spent; there is no tokenizer.
  Result<engine::PooledText> encode_text(const std::string& text, bool add_special_tokens, std::optional<int64_t> most,
                                         const PreparationBudget& budget) const;

  // A conversation as the model's prompt, with its tools. Unless `whole`, one that is longer than the context is an
  // error of kOverflowParam, or cut. Errors: also invalid_argument: the budget is spent.
  Result<PreparedPrompt> render(const ChatRequest& request, const PreparationBudget& budget, bool whole) const;
  // A text by itself.
  Result<std::vector<TokenId>> encode(const std::string& text, bool add_special_tokens,
                                      const PreparationBudget& budget) const;
  // Errors: invalid_argument: so many bytes, of an answer or of what it is made of, are more than one may take.
  Status check_answer_bytes(int64_t bytes, const char* field) const;
  PreparationBudget budget() const { return PreparationBudget(config_.max_preparation_time); }
  // A status as its client is told it.
  ApiError told(const Status& status) const;
  // A sensible Retry-After, in seconds.
  int retry_after() const;

  engine::Engine& engine() const { return engine_; }
  const std::string& model_name() const { return model_.names.front(); }
  const SchemaLimits& limits() const { return limits_; }
  // What suits conversations with people.
  SamplingDefaults chat_sampling() const;

 private:
  Generator(const ServerConfig& config, const ModelSource& model, SamplingDefaults defaults,
            boost::json::object default_variables, Tenants& tenants, engine::Engine& engine);
  void count_rejection(const char* reason) const;
  Status check_generates() const;
  Status check_text_length(size_t bytes) const;
  Status check_length(const PreparedPrompt& prompt, const GenerationOptions& options, bool score_only) const;
  Status check_size(const GenerationOptions& options, size_t num_prompts) const;
  Result<PreparedPrompt> encode(const Prompt& prompt, const CompletionRequest& request,
                                const PreparationBudget& budget) const;
  Result<std::vector<TokenId>> encode_prediction(const GenerationOptions& options,
                                                 const PreparationBudget& budget) const;
  text::EncodeLimits encode_limits(const SamplingParams& params, const PreparationBudget& budget) const;
  void truncate(const GenerationOptions& options, PreparedPrompt& prompt) const;
  AnswerContext context_of(const HttpRequest& request, const GenerationOptions& options,
                           std::string_view id_prefix) const;
  // Against other requests.
  struct Standing {
    int32_t tenant;
    double weight;
    int32_t priority;
  };
  Standing standing_of(const HttpRequest& request, int32_t priority) const;
  Status check_priority(int32_t priority) const;
  // All that is needed to begin, once the answer's constraint is compiled.
  struct Beginning {
    GenerationOptions options;
    AnswerContext context;
    std::vector<PreparedPrompt> prompts;
    MakeWriter make_writer;
    std::shared_ptr<const grammar::AnswerReading> reading;  // nullptr: all is text
    bool chat = false;                                      // whose fields have names that the engine does not know
    std::shared_ptr<LoadTicket> ticket = nullptr;           // see admit()
    std::shared_ptr<HeldBytes> memory = nullptr;
    std::shared_ptr<PromptCharge> charge = nullptr;
    std::shared_ptr<const TokenConstraint> constraint = nullptr;  // the constraint in `options`, compiled
    std::vector<TokenId> prediction = {};                         // that in `options`
  };
  // Finds room for the answers, by number and by size. Before what is costly: who waits for a constraint to be compiled
  // has a place already.
  Status admit(const HttpRequest& request, Beginning& beginning) const;
  // Takes the prompts' tokens out of what the request's key may use in a minute. Errors: resource_exhausted, with the
  // seconds after which they fit.
  Result<std::shared_ptr<PromptCharge>> charge(const HttpRequest& request, int64_t prompt_tokens) const;
  std::string salt_of(const HttpRequest& request, const std::string& cache_salt) const;
  bool is_adapter(const GenerationOptions& options) const;
  Result<std::vector<std::unique_ptr<engine::Completion>>> submit(const Beginning& beginning, const HttpRequest& from,
                                                                  const Standing& standing) const;
  Status start(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const;
  // How the answer is read, and what it must be so that it can be: changes the constraint in `options`.
  Result<std::shared_ptr<const grammar::AnswerReading>> read_answer(const ChatRequest& request, bool thinks,
                                                                    GenerationOptions& options) const;
  Status start_admitted(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const;
  // The rest of a start, somewhere else: what is wrong then is told by the writer.
  void go_on(const std::shared_ptr<Exchange>& exchange, const Beginning& beginning,
             const std::function<Status()>& rest) const;
  // Of the request's one prompt, to and from other instances.
  KvTransfer::Text transferred_text(const HttpRequest& request, const Beginning& beginning) const;
  static Status check_transfer(const Beginning& beginning);
  Status start_compiled(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const;
  Status start_engine(const std::shared_ptr<Exchange>& exchange, Beginning& beginning) const;
  // A status as the request's fields are called.
  static Status named(Status status, const Beginning& beginning);
  void log_start(const HttpRequest& request, const GenerationOptions& options,
                 const std::vector<PreparedPrompt>& prompts) const;

  const ServerConfig& config_;
  const ModelSource& model_;
  Tenants& tenants_;
  const std::vector<std::string> owners_;  // by tenant: what its blocks are kept under
  const std::string nobody_;               // of a tenant that is none of them
  engine::Engine& engine_;
  const SchemaLimits limits_;
  const boost::json::object default_variables_;  // of templates
  const std::string system_fingerprint_;
  const grammar::ToolFormat tool_format_;
  const grammar::ReasoningFormat reasoning_format_;
  size_t max_bytes_per_token_ = 0;    // as Tokenizer has it; 0: there is no such bound
  const std::shared_ptr<Load> load_;  // answers under way
  const std::shared_ptr<SharedBytes> answer_bytes_;
  // Constraints whose requests come back here; theirs, too, for the last one to ring by.
  const std::shared_ptr<std::atomic<int64_t>> compiling_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace quire::server
