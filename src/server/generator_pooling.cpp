// The way of requests for vectors and scores: one of a Generator's two.
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/api_error.h"
#include "server/generator.h"
#include "server/request_span.h"

namespace quire::server {

Result<engine::PooledText> Generator::encode_text(const std::string& text, bool add_special_tokens,
                                                  std::optional<int64_t> most, const PreparationBudget& budget) const {
  const text::Tokenizer* tokenizer = engine_.tokenizer();
  if (tokenizer == nullptr) {
    return invalid_argument("This server runs without a tokenizer: send token ids.").with_param("input");
  }
  const int64_t length = most.value_or(engine_.max_model_len());
  const text::TextPiece piece{.text = text, .trusted = true};
  // Behind a token more than is wanted nothing counts.
  text::EncodeLimits limits{.is_over = [&budget] { return budget.is_over(); }};
  if (!most || !engine_.text().truncates_left) limits.max_ids = static_cast<size_t>(length) + 1;
  auto ids = tokenizer->encode_within(std::span(&piece, 1), add_special_tokens, limits);
  QUIRE_RETURN_IF_ERROR(budget.check());
  QUIRE_RETURN_IF_ERROR(ids.status());
  engine::PooledText out{.ids = std::move(*ids)};
  if (!most) return out;
  if (add_special_tokens) {
    engine::truncate_text(engine_, *most, out.ids);
  } else if (static_cast<int64_t>(out.ids.size()) > *most) {
    if (engine_.text().truncates_left) out.ids.erase(out.ids.begin(), out.ids.end() - static_cast<ptrdiff_t>(*most));
    out.ids.resize(static_cast<size_t>(*most));
  }
  return out;
}

Status Generator::check_answer_bytes(int64_t bytes, const char* field) const {
  const auto most = static_cast<int64_t>(config_.max_answer_bytes);
  if (bytes <= most) return {};
  return invalid_argument(
             "The numbers of so many texts may take {} MiB or more; this server allows {} MiB an answer "
             "(--max-answer-bytes). Ask for fewer texts at once.",
             bytes >> 20, most >> 20)
      .with_param(field);
}

Status Generator::start_pooling(const std::shared_ptr<Exchange>& exchange, PoolingWork work, const char* field) const {
  const HttpRequest& request = exchange->request();
  QUIRE_RETURN_IF_ERROR(check_priority(work.options.priority));
  SamplingParams params;
  params.max_tokens = 0;
  for (size_t i = 0; i < work.texts.size(); ++i) {
    const Status status = engine_.check(work.texts[i].ids, params);
    if (status.ok()) continue;
    const std::string where = work.texts.size() > 1 ? fmt::format("Text {} of {}: ", i + 1, field) : "";
    return Status(status.code(), where + status.message())
        .with_param(status.param() == "prompt" ? field : status.param());
  }
  QUIRE_RETURN_IF_ERROR(check_answer_bytes(work.answer_bytes, field));
  int64_t num_tokens = 0;
  for (const engine::PooledText& text : work.texts) num_tokens += static_cast<int64_t>(text.ids.size());
  std::unique_ptr<LoadTicket> ticket;
  if (!request.in_idle_time) {
    // However many there are, no more of them are with the engine at a time (engine::PoolingJob).
    const int64_t waiting =
        std::min(static_cast<int64_t>(work.texts.size()), 2 * int64_t{engine_.config().max_num_seqs});
    ticket = load_->enter(request.tenant, waiting);
    if (ticket == nullptr) {
      count_rejection("tenant_share");
      return resource_exhausted("Requests of this API key fill its share of the queue; try again later.");
    }
  }
  auto memory = std::make_shared<HeldBytes>(answer_bytes_->place(request.tenant));
  if (!memory->set(static_cast<size_t>(work.answer_bytes))) {
    if (!request.in_idle_time) count_rejection("answer_bytes");
    return resource_exhausted(
        "Requests under way, of all or of this API key, take as much memory as they may; try again later.");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<PromptCharge> tokens, charge(request, num_tokens));
  tokens->keep();
  const Standing standing = standing_of(request, work.options.priority);
  work.options.cache_salt = salt_of(request, work.options.cache_salt);
  if (const double seconds = engine_.config().request_timeout; seconds > 0) {
    work.options.timeout =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  }
  work.options.label = request.id;
  work.options.priority = standing.priority;
  work.options.tenant = standing.tenant;
  work.options.weight = standing.weight;
  if (RequestSpan* span = request.span.get()) {
    span->asked(request.id, model_name(), num_tokens);
    work.options.timeline = span->timeline();
  }
  if (config_.enable_log_requests) {
    log_with(LogLevel::kInfo,
             {{"request_id", request.id},
              {"texts", std::to_string(work.texts.size()), true},
              {"prompt_tokens", std::to_string(num_tokens), true}},
             "request");
  }
  std::make_shared<PoolingAnswer>(exchange, engine_, std::move(work), load_, std::move(ticket), std::move(memory),
                                  retry_after())
      ->start();
  return {};
}

}  // namespace quire::server
