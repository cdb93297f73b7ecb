#include "server/responses_api.h"

#include <algorithm>
#include <ctime>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/parse_json.h"
#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/listing.h"
#include "server/random_id.h"
#include "server/request_span.h"
#include "server/responses_writer.h"
#include "server/url.h"

namespace quire::server {
namespace json = boost::json;

namespace {

// The response before it has begun.
json::object skeleton(const ResponsesRequest& request, const std::string& id, const std::string& model) {
  json::object response = request.echo;
  response["id"] = id;
  response["object"] = "response";
  response["created_at"] = static_cast<int64_t>(std::time(nullptr));
  response["completed_at"] = nullptr;
  response["status"] = "in_progress";
  response["error"] = nullptr;
  response["incomplete_details"] = nullptr;
  response["model"] = model;
  response["output"] = json::array();
  response["usage"] = nullptr;
  return response;
}

// What may be gone on from; nothing after a failure.
std::string with_answer(json::array conversation, const json::object& ended, const json::object& message) {
  if (ended.at("status") == "failed") return {};
  conversation.emplace_back(message);
  return json::serialize(conversation);
}

// What was stored as text.
Result<json::value> read_back(std::string_view text) {
  boost::system::error_code error;
  json::value value = parse_json(text, error, {.max_depth = kMaxAnswerDepth});
  if (error) return internal_error("a stored response cannot be read: {}", error.message());
  return value;
}

// Drops the oldest turns until prompt and answer fit. What is left begins with a user's message: there are templates
// that take nothing else, and a call's output is nothing without the call. The template is rendered a few times: how
// much must go is not known without its tokens.
Status make_room(const Generator& generator, ResponsesRequest& request) {
  const json::array all = request.chat.messages;
  const size_t fixed = request.num_instructions;
  const int64_t answer = std::max<int64_t>(request.chat.options.params.max_tokens.value_or(1), 1);
  const PreparationBudget budget = generator.budget();
  const auto fits = [&]() -> Result<bool> {
    const auto prompt = generator.render(request.chat, budget, /*whole=*/false);
    if (!prompt.ok() && prompt.status().param() == kOverflowParam) return false;
    if (!prompt.ok()) return prompt.status();
    return static_cast<int64_t>(prompt->ids.size()) + answer <= generator.engine().max_model_len();
  };
  std::vector<size_t> turns;  // where what is left may begin
  for (size_t i = fixed + 1; i < all.size(); ++i) {
    if (all[i].at("role") == "user") turns.push_back(i);
  }
  if (turns.empty()) return {};  // the last turn stays: nothing could go
  QUIRE_ASSIGN_OR_RETURN(const bool enough, fits());
  if (enough) return {};
  const auto keep_from = [&](size_t turn) {
    const auto begin = all.begin();
    request.chat.messages = json::array(begin, begin + static_cast<std::ptrdiff_t>(fixed));
    request.chat.messages.insert(request.chat.messages.end(), begin + static_cast<std::ptrdiff_t>(turns[turn]),
                                 all.end());
  };
  size_t first = 0;
  size_t last = turns.size() - 1;
  while (first < last) {
    const size_t middle = (first + last) / 2;
    keep_from(middle);
    QUIRE_ASSIGN_OR_RETURN(const bool fit, fits());
    if (fit) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  keep_from(last);
  return {};
}

}  // namespace

ResponsesApi::ResponsesApi(const ServerConfig& config, Models& models, LocalExchanges& background)
    : models_(models),
      background_(background),
      store_(std::make_shared<ResponseStore>(config.max_stored_responses, config.max_stored_response_bytes,
                                             config.api_key_weights)) {}

Status ResponsesApi::answer_create(const ModelRequest& asked) {
  const HttpRequest& http = asked.exchange->request();
  const Generator& generator = asked.generator();
  const int32_t tenant = http.tenant;
  QUIRE_ASSIGN_OR_RETURN(const std::string previous_id, previous_response_id(asked.body));
  json::array previous;
  if (!previous_id.empty()) {
    auto found = store_->find(previous_id, tenant);
    if (!found.ok()) return found.status().with_param("previous_response_id");
    if ((*found)->conversation.empty()) {
      return invalid_argument("Response {} has no answer to go on from: it is in progress, was cancelled or failed.",
                              in_quotes(previous_id))
          .with_param("previous_response_id");
    }
    QUIRE_ASSIGN_OR_RETURN(json::value conversation, read_back((*found)->conversation));
    previous = std::move(conversation.get_array());
  }
  QUIRE_ASSIGN_OR_RETURN(ResponsesRequest request,
                         parse_responses_request(asked.body, std::move(previous), generator.limits()));
  if (request.truncate) QUIRE_RETURN_IF_ERROR(with_responses_param(make_room(generator, request)));

  StoredResponse stored;
  // An id of the client's own choice could be another response's already.
  stored.id = http.header("X-Request-Id").empty() ? "resp_" + http.id : random_id("resp_");
  stored.tenant = tenant;
  const std::string& model = request.chat.options.model;
  json::object response = skeleton(request, stored.id, model.empty() ? generator.model_name() : model);
  if (request.store) stored.input_items = json::serialize(request.input_items);
  if (request.background) return start_in_background(asked, request, std::move(stored), std::move(response));

  // Nobody has heard the id of an answer that failed before it began.
  const bool told = request.chat.options.stream;
  const auto keep = [store = request.store ? store_ : nullptr, stored = std::move(stored), told,
                     conversation = request.conversation](const json::object& ended,
                                                          const json::object& message) mutable {
    if (store == nullptr || (ended.at("status") == "failed" && !told)) return;
    stored.body = json::serialize(ended);
    stored.conversation = with_answer(std::move(conversation), ended, message);
    if (const Status status = store->add(std::move(stored)); !status.ok()) log_warning("{}", status.message());
  };
  return with_responses_param(
      generator.start_chat(asked.exchange, request.chat, "resp_",
                           [response, keep](AnswerContext context, size_t) -> std::unique_ptr<AnswerWriter> {
                             return std::make_unique<ResponsesWriter>(std::move(context), response, keep);
                           }));
}

Status ResponsesApi::start_in_background(const ModelRequest& asked, const ResponsesRequest& request,
                                         StoredResponse stored, json::object response) {
  HttpRequest inner;
  inner.method = "POST";
  inner.path = asked.exchange->request().path;
  inner.id = stored.id.substr(std::string_view("resp_").size());
  inner.tenant = stored.tenant;
  const HttpRequest& outer = asked.exchange->request();
  inner.traceparent = outer.span != nullptr ? outer.span->traceparent() : outer.traceparent;
  const std::string id = stored.id;
  // The writer has told the store already, unless nothing was written.
  auto work = background_.make(std::move(inner), [store = store_, id](const HttpResponse& answer) {
    if (answer.status == 200) return;
    const json::object failed{{"id", id},
                              {"object", "response"},
                              {"status", "failed"},
                              {"error", {{"code", "server_error"}, {"message", "The server failed."}}},
                              {"output", json::array()}};
    if (store->finish(id, json::serialize(failed), "")) log_error("response {} in the background was dropped", id);
  });
  stored.in_progress = true;
  stored.in_background = true;
  stored.work = work;
  stored.body = json::serialize(response);
  QUIRE_RETURN_IF_ERROR(store_->add(stored));  // first: the answer may be there before start_chat() returns
  json::object queued = response;
  queued["status"] = "queued";
  const auto keep = [store = store_, id, conversation = request.conversation](const json::object& ended,
                                                                              const json::object& message) {
    store->finish(id, json::serialize(ended), with_answer(conversation, ended, message));
  };
  Status status =
      asked.generator().start_chat(holding(work, asked.lease), request.chat, "resp_",
                                   [response, keep](AnswerContext context, size_t) -> std::unique_ptr<AnswerWriter> {
                                     return std::make_unique<ResponsesWriter>(std::move(context), response, keep);
                                   });
  if (!status.ok()) {
    static_cast<void>(store_->remove(id, stored.tenant));
    return with_responses_param(std::move(status));
  }
  asked.exchange->respond({200, "application/json", {}, json::serialize(queued)});
  return {};
}

Status ResponsesApi::answer_retrieve(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (const auto stream = query_value(request.query, "stream"); stream && *stream != "false" && *stream != "0") {
    return invalid_argument("A stored response is not streamed: leave stream out.").with_param("stream");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto stored, store_->find(request.argument, request.tenant));
  exchange->respond({200, "application/json", {}, stored->body});
  return {};
}

Status ResponsesApi::answer_cancel(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  QUIRE_ASSIGN_OR_RETURN(auto stored, store_->find(request.argument, request.tenant));
  if (!stored->in_background) {
    return invalid_argument("Only a response in the background can be cancelled.").with_param("response_id");
  }
  if (stored->in_progress) {
    QUIRE_ASSIGN_OR_RETURN(json::value cancelled, read_back(stored->body));
    cancelled.get_object()["status"] = "cancelled";
    store_->finish(stored->id, json::serialize(cancelled), "");
    if (const auto work = stored->work.lock()) work->cancel();
    QUIRE_ASSIGN_OR_RETURN(stored, store_->find(request.argument, request.tenant));
  }
  exchange->respond({200, "application/json", {}, stored->body});
  return {};
}

Status ResponsesApi::answer_remove(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  QUIRE_RETURN_IF_ERROR(store_->remove(request.argument, request.tenant));
  exchange->respond(
      {200,
       "application/json",
       {},
       json::serialize(json::object{{"id", request.argument}, {"object", "response.deleted"}, {"deleted", true}})});
  return {};
}

Status ResponsesApi::answer_input_items(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  QUIRE_ASSIGN_OR_RETURN(const auto stored, store_->find(request.argument, request.tenant));
  QUIRE_ASSIGN_OR_RETURN(json::value items, read_back(stored->input_items));
  QUIRE_ASSIGN_OR_RETURN(const json::object page,
                         page_of(std::move(items.get_array()), request.query, /*newest_first=*/true));
  exchange->respond({200, "application/json", {}, json::serialize(page)});
  return {};
}

void ResponsesApi::create(const std::shared_ptr<Exchange>& exchange) {
  with_model(models_, exchange, [this](const ModelRequest& asked) { return answer_create(asked); });
}
void ResponsesApi::retrieve(const std::shared_ptr<Exchange>& exchange) {
  if (const Status status = answer_retrieve(exchange); !status.ok()) answer_error(*exchange, status);
}
void ResponsesApi::cancel(const std::shared_ptr<Exchange>& exchange) {
  if (const Status status = answer_cancel(exchange); !status.ok()) answer_error(*exchange, status);
}
void ResponsesApi::remove(const std::shared_ptr<Exchange>& exchange) {
  if (const Status status = answer_remove(exchange); !status.ok()) answer_error(*exchange, status);
}
void ResponsesApi::input_items(const std::shared_ptr<Exchange>& exchange) {
  if (const Status status = answer_input_items(exchange); !status.ok()) answer_error(*exchange, status);
}

}  // namespace quire::server
