#include "server/generator.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <span>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/chat.h"
#include "engine/prepare_params.h"
#include "engine/tool_prompt.h"
#include "server/answer_size.h"
#include "server/digest.h"
#include "server/fill_in_the_middle.h"
#include "server/generation.h"
#include "server/request_span.h"

namespace quire::server {
namespace json = boost::json;

namespace {

using ConstraintOrError = Result<std::shared_ptr<const TokenConstraint>>;

grammar::ToolFormat tool_format(const ServerConfig& config, const engine::Engine& engine) {
  const auto named = grammar::tool_format(config.tool_call_parser);
  return named.ok() ? *named : grammar::tool_format_of(engine.text().chat_template);
}

grammar::ReasoningFormat reasoning_format(const ServerConfig& config, const engine::Engine& engine) {
  const auto named = grammar::reasoning_format(config.reasoning_parser);
  return named.ok() ? *named : grammar::reasoning_format_of(engine.text().chat_template);
}

Result<SamplingDefaults> sampling_defaults(const ServerConfig& config, const engine::Engine& engine) {
  const std::string& own = config.use_generation_config ? engine.text().generation_config : std::string();
  const std::string& text = config.generation_config.empty() ? own : config.generation_config;
  return read_sampling_defaults(text, config.override_generation_config);
}

Result<json::object> default_variables(const std::string& text) {
  if (text.empty()) return json::object();
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return invalid_argument("--default-chat-template-kwargs is no JSON object");
  for (const auto& member : value.get_object()) {
    if (is_reserved_variable(member.key())) {
      return invalid_argument("--default-chat-template-kwargs must not hold {}.", in_quotes(member.key(), 40));
    }
  }
  return value.get_object();
}

// The same for the same build, model, formats of its weights and cache, and options of --fingerprint-mode.
std::string system_fingerprint(const ServerConfig& config, const ModelSource& model, const engine::Engine& engine) {
  if (config.fingerprint_mode == "none") return {};
  if (config.fingerprint_mode == "custom") return config.fingerprint_value;
  const std::string root = model.root.empty() ? model.names.front() : model.root;
  const std::string hash =
      hex(sha256(fmt::format("{}\n{}\n{}", config.version, root, engine.device_description()))).substr(0, 12);
  return config.fingerprint_mode == "hash" ? "fp_" + hash : fmt::format("quire-{}-{}", config.version, hash);
}

Status as_invalid(const Status& status, std::string_view param) {
  return Status(StatusCode::kInvalidArgument, status.message())
      .with_param(status.param().empty() ? std::string(param) : status.param());
}

}  // namespace

Result<std::unique_ptr<const Generator>> Generator::create(const ServerConfig& config, const ModelSource& model,
                                                           Tenants& tenants, engine::Engine& engine) {
  QUIRE_ASSIGN_OR_RETURN(SamplingDefaults defaults, sampling_defaults(config, engine));
  if (const std::string shown = to_string(defaults); !shown.empty()) {
    log_info("requests that do not say are sampled as the model advises (--generation-config vllm: not): {}", shown);
  }
  QUIRE_ASSIGN_OR_RETURN(json::object variables, default_variables(config.default_chat_template_kwargs));
  return std::unique_ptr<const Generator>(
      new Generator(config, model, std::move(defaults), std::move(variables), tenants, engine));
}

Generator::Generator(const ServerConfig& config, const ModelSource& model, SamplingDefaults defaults,
                     json::object default_variables, Tenants& tenants, engine::Engine& engine)
    : config_(config),
      model_(model),
      tenants_(tenants),
      owners_(lasting_names(config.api_keys, "prefix cache")),
      nobody_(random_id()),
      engine_(engine),
      limits_{.defaults = std::move(defaults),
              .max_prompts = config.max_prompts,
              .max_n = config.max_n,
              .max_stop = config.max_stop,
              .max_token_ids = std::max<int64_t>(engine.model().vocab_size, 1),
              .max_model_len = engine.max_model_len(),
              .kv_transfer = config.kv_transfer != nullptr ? config.kv_transfer->role() : KvTransferRole(),
              .max_transfer_blocks = engine.max_model_len() / std::max(engine.memory().block_size, 1),
              .trust_request_chat_template = config.trust_request_chat_template,
              .return_token_ids = config.return_token_ids,
              .return_tokens_as_token_ids = config.return_tokens_as_token_ids},
      default_variables_(std::move(default_variables)),
      system_fingerprint_(system_fingerprint(config, model, engine)),
      tool_format_(tool_format(config, engine)),
      reasoning_format_(reasoning_format(config, engine)),
      load_(
          std::make_shared<Load>(tenants.weights(), engine.config().max_num_seqs, engine.config().max_num_queued_reqs)),
      answer_bytes_(std::make_shared<SharedBytes>(config.max_answer_bytes, config.api_key_weights)) {
  if (engine.tokenizer() != nullptr) max_bytes_per_token_ = engine.tokenizer()->most_bytes_per_token();
}

Generator::~Generator() {
  for (int64_t left = *compiling_; left != 0; left = *compiling_) compiling_->wait(left);
}

SamplingDefaults Generator::chat_sampling() const {
  return server::chat_sampling(limits_.defaults, engine_.text().chat_template).values;
}

void Generator::count_rejection(const char* reason) const {
  engine_.metrics()
      .counter("vllm:admission_rejections_total", "Requests refused before they were queued, by reason.",
               {{"model_name", model_name()}, {"reason", reason}})
      .increment();
}

int Generator::retry_after() const {
  return load_->retry_after(engine_.stats().num_waiting);
}

ApiError Generator::told(const Status& status) const {
  ApiError error = to_api_error(status);
  if (error.status == 429 && status.retry_after() == 0) error.retry_after = retry_after();
  return error;
}

// --------------------------------------------------------------------------------------------------------------
// prompts

// A text far beyond the context need not be tokenized.
Status Generator::check_text_length(size_t bytes) const {
  const auto most = static_cast<uint64_t>(engine_.max_model_len()) * max_bytes_per_token_;
  if (max_bytes_per_token_ == 0 || bytes <= most) return {};
  return invalid_argument(
             "This model's maximum context length is {} tokens. However, your prompt has {} bytes of text, which can "
             "be no fewer than {} tokens. Please shorten the prompt.",
             engine_.max_model_len(), bytes, (bytes + max_bytes_per_token_ - 1) / max_bytes_per_token_)
      .with_param(kOverflowParam);
}

Status Generator::check_length(const PreparedPrompt& prompt, const GenerationOptions& options, bool score_only) const {
  const int64_t most = engine_.max_model_len();
  const auto found = static_cast<int64_t>(prompt.ids.size());
  if (options.params.max_tokens && *options.params.max_tokens > most) {
    return invalid_argument("{}={} cannot be greater than max_model_len={}. Please ask for fewer output tokens.",
                            options.max_tokens_field, *options.params.max_tokens, most)
        .with_param(options.max_tokens_field);
  }
  if (found + (score_only ? 0 : 1) <= most) return {};
  return invalid_argument(
             "This model's maximum context length is {} tokens. However, your prompt contains {}{} input tokens, which "
             "leaves no room for the answer. Please shorten the prompt.",
             most, prompt.is_cut ? "at least " : "", found)
      .with_param(kOverflowParam);
}

// What is left of a prompt that is truncated is its end.
text::EncodeLimits Generator::encode_limits(const SamplingParams& params, const PreparationBudget& budget) const {
  text::EncodeLimits limits{.is_over = [&budget] { return budget.is_over(); }};
  if (!params.truncate_prompt_tokens) limits.max_ids = static_cast<size_t>(engine_.max_model_len());
  return limits;
}

Result<PreparedPrompt> Generator::render(const ChatRequest& request, const PreparationBudget& budget,
                                         bool whole) const {
  const SamplingParams& params = request.options.params;
  engine::ChatOptions chat{.add_generation_prompt = request.add_generation_prompt,
                           .continue_final_message = request.continue_final_message,
                           .chat_template = request.chat_template,
                           .variables = request.template_variables,
                           .max_template_time = budget.left(),
                           .encode = encode_limits(params, budget)};
  if (whole) chat.encode.max_ids = text::EncodeLimits().max_ids;
  if (!whole && !params.truncate_prompt_tokens) {
    chat.check_text = [&](size_t bytes) { return check_text_length(bytes); };
  }
  for (const auto& [name, value] : default_variables_) chat.variables.emplace(name, value);
  const std::string& text = chat.chat_template.empty() ? engine_.text().chat_template : chat.chat_template;
  const bool knows_tools = grammar::knows_tools(text);
  const bool calls = request.tool_choice != grammar::ToolChoice::kNone;
  const bool shown = !request.tools.empty() && (calls || !config_.exclude_tools_when_none);
  if (shown && knows_tools) chat.variables["tools"] = request.tools;
  // A template that knows nothing of tools is given them in words, and earlier calls and results too, unless it knows
  // these.
  const json::array none;
  const json::array& tools = calls ? request.tools : none;
  const bool knows_calls = text.find("tool_calls") != std::string::npos;
  const bool in_words = !knows_tools && (!tools.empty() || (!knows_calls && engine::has_calls(request.messages)));
  auto prompt =
      in_words ? engine::render_chat(engine_, engine::with_tools_in_words(request.messages, tools, tool_format_), chat)
               : engine::render_chat(engine_, request.messages, chat);
  QUIRE_RETURN_IF_ERROR(budget.check());
  // A template that runs into a limit does so because of what the client sent.
  if (!prompt.ok()) return as_invalid(prompt.status(), "messages");
  PreparedPrompt out{.ids = std::move(prompt->ids),
                     .thinks = grammar::ends_in_reasoning(reasoning_format_, prompt->text)};
  out.is_cut = out.ids.size() > chat.encode.max_ids;
  if (request.options.echo) {
    const json::object& last = request.messages.back().get_object();
    const json::value* content = last.if_contains("content");
    if (last.at("role") == "assistant" && content != nullptr && content->is_string()) out.echo = content->get_string();
  }
  return out;
}

Result<std::vector<TokenId>> Generator::encode(const std::string& text, bool add_special_tokens,
                                               const PreparationBudget& budget) const {
  const text::TextPiece piece{.text = text, .trusted = true};
  auto ids = engine_.tokenizer()->encode_within(std::span(&piece, 1), add_special_tokens,
                                                {.is_over = [&budget] { return budget.is_over(); }});
  QUIRE_RETURN_IF_ERROR(budget.check());
  return ids;
}

// What lies behind the context's end is no use.
Result<std::vector<TokenId>> Generator::encode_prediction(const GenerationOptions& options,
                                                          const PreparationBudget& budget) const {
  if (options.prediction.empty()) return std::vector<TokenId>();
  if (engine_.tokenizer() == nullptr) {
    return invalid_argument("This server runs without a tokenizer: a prediction's text says nothing to it.")
        .with_param("prediction");
  }
  if (!check_text_length(options.prediction.size()).ok()) {
    return invalid_argument("The prediction has {} bytes of text, more than an answer of this model can have.",
                            options.prediction.size())
        .with_param("prediction");
  }
  const text::TextPiece piece{.text = options.prediction, .trusted = false};
  auto ids = engine_.tokenizer()->encode_within(
      std::span(&piece, 1), /*add_special_tokens=*/false,
      {.max_ids = static_cast<size_t>(engine_.max_model_len()), .is_over = [&budget] { return budget.is_over(); }});
  QUIRE_RETURN_IF_ERROR(budget.check());
  return ids;
}

Result<PreparedPrompt> Generator::encode(const Prompt& prompt, const CompletionRequest& request,
                                         const PreparationBudget& budget) const {
  const text::Tokenizer* tokenizer = engine_.tokenizer();
  PreparedPrompt out;
  const auto* text = std::get_if<std::string>(&prompt);
  if (tokenizer == nullptr && (text != nullptr || !request.suffix.empty())) {
    return invalid_argument("This server runs without a tokenizer: send the prompt as token ids.")
        .with_param(request.suffix.empty() ? "prompt" : "suffix");
  }
  if (text != nullptr && !request.options.params.truncate_prompt_tokens) {
    QUIRE_RETURN_IF_ERROR(check_text_length(text->size() + request.suffix.size()));
  }
  const text::EncodeLimits limits = encode_limits(request.options.params, budget);
  QUIRE_RETURN_IF_ERROR(budget.check());
  if (!request.suffix.empty()) {
    auto ids = fill_in_the_middle(*tokenizer, prompt, request.suffix, request.add_special_tokens, limits);
    QUIRE_RETURN_IF_ERROR(budget.check());
    QUIRE_ASSIGN_OR_RETURN(out.ids, std::move(ids));
    out.is_cut = out.ids.size() > limits.max_ids;
  } else if (text != nullptr) {
    const text::TextPiece piece{.text = *text, .trusted = true};
    auto ids = tokenizer->encode_within(std::span(&piece, 1), request.add_special_tokens, limits);
    QUIRE_RETURN_IF_ERROR(budget.check());
    QUIRE_ASSIGN_OR_RETURN(out.ids, std::move(ids));
    out.is_cut = out.ids.size() > limits.max_ids;
    if (request.options.echo) out.echo = *text;
  } else {
    out.ids = std::get<std::vector<TokenId>>(prompt);
    if (request.options.echo && tokenizer != nullptr) {
      out.echo = tokenizer->decode(out.ids, request.options.params.skip_special_tokens);
    }
  }
  return out;
}

// What is shown of a prompt is what is left of it.
void Generator::truncate(const GenerationOptions& options, PreparedPrompt& prompt) const {
  const size_t before = prompt.ids.size();
  engine::truncate_prompt(engine_.max_model_len(), options.params, prompt.ids);
  if (prompt.ids.size() == before || !options.echo || engine_.tokenizer() == nullptr) return;
  prompt.echo = engine_.tokenizer()->decode(prompt.ids, options.params.skip_special_tokens);
}

// -----------------------------------------------------------------------------------------------------------
// generating

// What can be known of a request to be too much before the engine sees it.
Status Generator::check_size(const GenerationOptions& options, size_t num_prompts) const {
  const SamplingParams& params = options.params;
  const int64_t each = params.use_beam_search ? 1 : params.num_sequences();
  const int64_t wanted = static_cast<int64_t>(num_prompts) * each;
  if (const int64_t most = engine_.config().max_num_queued_reqs; wanted > most) {
    return invalid_argument("{} prompts with n={} are {} answers; this server queues at most {}.", num_prompts, each,
                            wanted, most)
        .with_param(params.best_of ? "best_of" : "n");
  }
  return check_priority(options.priority);
}

Status Generator::check_priority(int32_t priority) const {
  if (priority != 0 && engine_.config().scheduling_policy != SchedulingPolicy::kPriority) {
    return invalid_argument(
               "priority is {}, and this server serves requests in the order they come "
               "(--scheduling-policy priority would heed it). Leave it out.",
               priority)
        .with_param("priority");
  }
  return {};
}

AnswerContext Generator::context_of(const HttpRequest& request, const GenerationOptions& options,
                                    std::string_view id_prefix) const {
  const bool own_id = !options.request_id.empty() && request.header("X-Request-Id").empty();
  AnswerContext context;
  context.id = std::string(id_prefix) + (own_id ? options.request_id : request.id);
  context.model = options.model.empty() ? model_name() : options.model;
  context.created = static_cast<int64_t>(std::time(nullptr));
  context.system_fingerprint = system_fingerprint_;
  if (options.names_service_tier) context.service_tier = "default";
  context.stream = options.stream;
  context.tokenizer = engine_.tokenizer();
  context.num_logprobs = options.params.logprobs;
  context.echo = options.echo;
  context.skip_special_tokens = options.params.skip_special_tokens;
  context.return_token_ids = options.return_token_ids;
  context.tokens_as_token_ids = options.return_tokens_as_token_ids;
  context.include_usage = options.include_usage || config_.force_include_usage;
  context.continuous_usage = options.continuous_usage_stats;
  return context;
}

Generator::Standing Generator::standing_of(const HttpRequest& request, int32_t priority) const {
  const std::vector<double>& weights = config_.api_key_weights;
  if (request.in_idle_time) {
    // A tenant of its own with next to no share; where priorities count, behind every other.
    constexpr double kShare = 1e-3;
    constexpr int32_t kLast = 1000;
    const double least = weights.empty() ? 1.0 : *std::ranges::min_element(weights);
    return {.tenant = static_cast<int32_t>(std::max<size_t>(config_.api_keys.size(), 1)),
            .weight = least * kShare,
            .priority = engine_.config().scheduling_policy == SchedulingPolicy::kPriority ? kLast : 0};
  }
  const auto key = static_cast<size_t>(request.tenant);
  return {.tenant = request.tenant, .weight = key < weights.size() ? weights[key] : 1.0, .priority = priority};
}

// Blocks on disk outlive the list of keys, so that a key's number would be another's. What stands before the first ':'
// can be no part of another key's salt.
std::string Generator::salt_of(const HttpRequest& request, const std::string& cache_salt) const {
  const bool apart = config_.api_keys.size() > 1 && !config_.share_prefix_cache_across_keys;
  if (!apart) return cache_salt;
  const auto tenant = static_cast<size_t>(request.tenant);  // of a batch whose key is there no more: none
  return fmt::format("{}:{}", tenant < owners_.size() ? owners_[tenant] : nobody_, cache_salt);
}

bool Generator::is_adapter(const GenerationOptions& options) const {
  return !options.model.empty() && std::ranges::find(model_.names, options.model) == model_.names.end();
}

Result<std::vector<std::unique_ptr<engine::Completion>>> Generator::submit(const Beginning& beginning,
                                                                           const HttpRequest& from,
                                                                           const Standing& standing) const {
  const GenerationOptions& options = beginning.options;
  QUIRE_ASSIGN_OR_RETURN(const engine::PreparedParams prepared,
                         engine::Completion::prepare(engine_, options.params, standing.tenant, beginning.constraint));
  const std::string salt = salt_of(from, options.cache_salt);
  std::vector<std::unique_ptr<engine::Completion>> completions;  // dropped, and so cancelled, when one fails
  for (const PreparedPrompt& prompt : beginning.prompts) {
    engine::GenerationRequest request{.prompt = prompt.ids,
                                      .params = {},
                                      .prepared = prepared,
                                      .reading = beginning.reading,
                                      .label = beginning.context.id,
                                      .priority = standing.priority,
                                      .adapter = is_adapter(options) ? options.model : std::string(),
                                      .prediction = beginning.prediction,
                                      .speculates = options.speculates,
                                      .cache_salt = salt,
                                      .tenant = standing.tenant,
                                      .weight = standing.weight,
                                      .timeout = options.timeout};
    if (from.span != nullptr) request.timeline = from.span->timeline();
    QUIRE_ASSIGN_OR_RETURN(auto started, engine::Completion::start(engine_, std::move(request)));
    std::ranges::move(started, std::back_inserter(completions));
  }
  return completions;
}

void Generator::log_start(const HttpRequest& request, const GenerationOptions& options,
                          const std::vector<PreparedPrompt>& prompts) const {
  LogFields fields = {{"request_id", request.id},
                      {"prompts", std::to_string(prompts.size()), true},
                      {"n", std::to_string(options.params.n), true},
                      {"first_prompt_tokens", std::to_string(prompts.front().ids.size()), true},
                      {"max_tokens", std::to_string(options.params.max_tokens.value_or(-1)), true},
                      {"temperature", fmt::format("{}", options.params.temperature), true}};
  if (config_.max_log_len > 0 && engine_.tokenizer() != nullptr) {
    const std::string text = engine_.tokenizer()->decode(prompts.front().ids, /*skip_special_tokens=*/false);
    fields.push_back({"first_prompt", std::string(shortened(text, static_cast<size_t>(config_.max_log_len)))});
  }
  log_with(LogLevel::kInfo, fields, "request");
}

Status Generator::admit(const HttpRequest& request, Beginning& beginning) const {
  const GenerationOptions& options = beginning.options;
  QUIRE_RETURN_IF_ERROR(check_size(options, beginning.prompts.size()));
  if (const auto most = limits_.defaults.max_new_tokens) {
    std::optional<int32_t>& tokens = beginning.options.params.max_tokens;
    tokens = std::min(tokens.value_or(*most), *most);
  }
  const char* field = options.params.prompt_logprobs ? "prompt_logprobs" : options.params.logprobs ? "logprobs" : "n";
  const AnswerSize size = answer_size(options.params, beginning.context, beginning.prompts, engine_.cost_facts());
  const auto most = static_cast<int64_t>(config_.max_answer_bytes);
  if (size.text > most || size.held > most) {
    return invalid_argument(
               "The request may take {} MiB, of lists, copies of prompts, log-probabilities and their text; this "
               "server "
               "allows {} MiB (--max-answer-bytes). Ask for fewer alternatives, tokens or answers.",
               std::max(size.text, size.held) >> 20, most >> 20)
        .with_param(field);
  }
  if (!request.in_idle_time) {  // else there are few of them, and their own bound
    const int64_t answers = static_cast<int64_t>(beginning.prompts.size()) * options.params.num_sequences();
    beginning.ticket = load_->enter(request.tenant, answers);
    if (beginning.ticket == nullptr) {
      count_rejection("tenant_share");
      return resource_exhausted("Requests of this API key fill its share of the queue; try again later.");
    }
  }
  // A batch's line is put together whole, a prompt's part with each of its choices.
  const int64_t held = request.in_idle_time ? std::max(size.held, size.text) : size.held;
  if (held == 0) return {};
  beginning.memory = std::make_shared<HeldBytes>(answer_bytes_->place(request.tenant));
  if (!beginning.memory->set(static_cast<size_t>(held))) {
    if (!request.in_idle_time) count_rejection("answer_bytes");  // else it comes again by itself
    return resource_exhausted(
        "Requests under way, of all or of this API key, take as much memory as they may; try again later.");
  }
  return {};
}

Result<std::shared_ptr<PromptCharge>> Generator::charge(const HttpRequest& request, int64_t prompt_tokens) const {
  Tenant& tenant = tenants_[request.tenant];
  const std::optional<int> seconds = tenant.admit(prompt_tokens);
  if (!seconds) return std::make_shared<PromptCharge>(tenant, prompt_tokens);
  if (!request.in_idle_time) count_rejection("quota");  // else it comes again by itself
  return resource_exhausted("This API key has used up its tokens per minute; this request fits in {} s.", *seconds)
      .with_retry_after(*seconds);
}

Status Generator::check_transfer(const Beginning& beginning) {
  const GenerationOptions& options = beginning.options;
  if (!options.kv_transfer.asks()) return {};
  const auto refuse = [](const char* why) {
    return invalid_argument("kv_transfer_params: {}", why).with_param("kv_transfer_params");
  };
  if (beginning.prompts.size() != 1) return refuse("blocks are of one prompt, and this request has several.");
  if (!options.kv_transfer.do_remote_decode) return {};
  if (options.stream) return refuse("do_remote_decode is answered at the end: leave out stream.");
  if (options.params.num_sequences() != 1)
    return refuse("do_remote_decode is for one answer: leave out n and best_of.");
  return {};
}

KvTransfer::Text Generator::transferred_text(const HttpRequest& request, const Beginning& beginning) const {
  return {.prompt = beginning.prompts.front().ids,
          .cache_salt = salt_of(request, beginning.options.cache_salt),
          .has_adapter = is_adapter(beginning.options)};
}

void Generator::go_on(const std::shared_ptr<Exchange>& exchange, const Beginning& beginning,
                      const std::function<Status()>& rest) const {
  const MakeWriter make_writer = beginning.make_writer;
  const AnswerContext context = beginning.context;
  if (const Status status = rest(); !status.ok()) exchange->respond(make_writer(context, 1)->failure(told(status)));
}

// Fetching blocks takes long, and so may compiling, and others wait for this thread: it goes on elsewhere.
Status Generator::start(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const {
  QUIRE_RETURN_IF_ERROR(check_transfer(beginning));
  QUIRE_RETURN_IF_ERROR(named(admit(exchange->request(), beginning), beginning));
  int64_t prompt_tokens = 0;
  for (const PreparedPrompt& prompt : beginning.prompts) prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  QUIRE_ASSIGN_OR_RETURN(beginning.charge, charge(exchange->request(), prompt_tokens));
  if (!beginning.options.kv_transfer.do_remote_prefill) return start_admitted(exchange, std::move(beginning));
  ++*compiling_;
  const KvTransferParams params = beginning.options.kv_transfer;
  KvTransfer::Text text = transferred_text(exchange->request(), beginning);
  const auto shared = std::make_shared<Beginning>(std::move(beginning));
  config_.kv_transfer->fetch(engine_, params, std::move(text), [this, compiling = compiling_, exchange, shared] {
    go_on(exchange, *shared, [&] { return start_admitted(exchange, std::move(*shared)); });
    --*compiling;
    compiling->notify_all();
  });
  return {};
}

Status Generator::start_admitted(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const {
  if (!beginning.options.params.structured_output) return start_compiled(exchange, std::move(beginning));
  ++*compiling_;
  const StructuredOutput output = *beginning.options.params.structured_output;
  engine_.compile_structured_output(output, exchange->request().tenant,
                                    [this, compiling = compiling_, exchange,
                                     beginning = std::move(beginning)](const ConstraintOrError& compiled) mutable {
                                      const MakeWriter make_writer = beginning.make_writer;
                                      const AnswerContext context = beginning.context;
                                      Status status = compiled.status();
                                      if (compiled.ok()) {
                                        beginning.constraint = *compiled;
                                        status = start_compiled(exchange, std::move(beginning));
                                      } else {
                                        status = std::move(status).with_param(beginning.options.structured_field);
                                        beginning.charge.reset();  // before anybody is told
                                      }
                                      if (!status.ok())
                                        exchange->respond(make_writer(context, 1)->failure(told(status)));
                                      --*compiling;
                                      compiling->notify_all();
                                    });
  return {};
}

// The engine knows nothing of the names that a chat gives its fields.
Status Generator::named(Status status, const Beginning& beginning) {
  if (!beginning.chat || status.ok()) return status;
  if (status.param() == "prompt") return std::move(status).with_param("messages");
  if (status.param() == "logprobs") return std::move(status).with_param("top_logprobs");
  if (status.param() == "max_tokens") return std::move(status).with_param(beginning.options.max_tokens_field);
  return status;
}

Status Generator::start_compiled(const std::shared_ptr<Exchange>& exchange, Beginning beginning) const {
  Status status = start_engine(exchange, beginning);
  return named(std::move(status), beginning);
}

Status Generator::start_engine(const std::shared_ptr<Exchange>& exchange, Beginning& beginning) const {
  const GenerationOptions& options = beginning.options;
  std::vector<PreparedPrompt>& prompts = beginning.prompts;
  AnswerContext& context = beginning.context;
  const Standing standing = standing_of(exchange->request(), options.priority);
  Delivery delivery{.stream = options.stream,
                    .load = load_,
                    .ticket = beginning.ticket,
                    .memory = beginning.memory,
                    .tenant = &tenants_[exchange->request().tenant]};
  if (options.kv_transfer.do_remote_decode) {
    delivery.hand_over = [this, compiling = compiling_, text = transferred_text(exchange->request(), beginning)](
                             std::function<void(std::string)> told_params) {
      ++*compiling;
      config_.kv_transfer->hand_over(engine_, text,
                                     [compiling, told_params = std::move(told_params)](const json::value& params) {
                                       told_params(json::serialize(params));
                                       --*compiling;
                                       compiling->notify_all();
                                     });
    };
  }
  if (RequestSpan* span = exchange->request().span.get()) {
    span->asked(context.id, context.model, beginning.charge->prompt_tokens());
    span->asked(options.params);
  }
  auto completions = submit(beginning, exchange->request(), standing);
  if (!completions.ok()) return completions.status();
  beginning.charge->keep();
  if (config_.enable_log_requests) log_start(exchange->request(), options, prompts);
  std::unique_ptr<AnswerWriter> writer = beginning.make_writer(std::move(context), completions->size());
  std::make_shared<Generation>(exchange, std::move(writer), std::move(prompts), std::move(*completions),
                               std::move(delivery))
      ->start();
  return {};
}

Result<std::shared_ptr<const grammar::AnswerReading>> Generator::read_answer(const ChatRequest& request, bool thinks,
                                                                             GenerationOptions& options) const {
  auto reading = std::make_shared<grammar::AnswerReading>();
  reading->reasoning = reasoning_format_;
  reading->begun = thinks;
  reading->reasoning_budget = request.thinking_token_budget;
  if (reading->reasoning_budget && reasoning_format_ == grammar::ReasoningFormat::kNone) {
    return invalid_argument("thinking_token_budget needs a model that shows its reasoning (--reasoning-parser).")
        .with_param("thinking_token_budget");
  }
  if (request.tool_choice != grammar::ToolChoice::kNone) {
    if (tool_format_ == grammar::ToolFormat::kNone) {
      return invalid_argument("This server reads no tool calls (--tool-call-parser none): leave tools out.")
          .with_param("tools");
    }
    reading->tools = tool_format_;
    reading->choice = request.tool_choice;
    reading->functions = request.functions;
    reading->parallel = request.parallel_tool_calls && request.tool_choice != grammar::ToolChoice::kNamed;
    reading->mistral_args = engine_.text().chat_template.find("[ARGS]") != std::string::npos;
  }
  SamplingParams& params = options.params;
  if (params.structured_output) reading->choice = grammar::ToolChoice::kNone;  // all that is said is that
  if (reading->plain()) return std::shared_ptr<const grammar::AnswerReading>();
  QUIRE_ASSIGN_OR_RETURN(params.structured_output,
                         grammar::constraint_of(*reading, params.structured_output, grammar::GrammarLimits{}));
  if (reading->reads_tools()) options.structured_field = "tools";
  return std::shared_ptr<const grammar::AnswerReading>(std::move(reading));
}

// What the engine would say when all is prepared.
Status Generator::check_generates() const {
  const ModelTask task = engine_.model().task;
  if (task == ModelTask::kGenerate) return {};
  return invalid_argument("The model gives {}, and generates no text.",
                          task == ModelTask::kEmbed ? "embeddings" : "scores")
      .with_param("model");
}

Status Generator::start_chat(const std::shared_ptr<Exchange>& exchange, const ChatRequest& request,
                             std::string_view id_prefix, const MakeWriter& make_writer) const {
  QUIRE_RETURN_IF_ERROR(check_generates());
  GenerationOptions options = request.options;
  std::vector<PreparedPrompt> prompts(1);
  const PreparationBudget most = budget();
  QUIRE_ASSIGN_OR_RETURN(prompts.front(), render(request, most, /*whole=*/false));
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> prediction, encode_prediction(options, most));
  engine::truncate_prompt(engine_.max_model_len(), options.params, prompts.front().ids);
  QUIRE_RETURN_IF_ERROR(check_length(prompts.front(), options, /*score_only=*/false));
  QUIRE_ASSIGN_OR_RETURN(auto reading, read_answer(request, prompts.front().thinks, options));
  AnswerContext context = context_of(exchange->request(), options, id_prefix);
  context.role = config_.response_role;
  context.prompt_logprobs_asked = options.params.prompt_logprobs.has_value();
  context.include_reasoning = request.include_reasoning;
  context.named_tool = request.tool_choice == grammar::ToolChoice::kNamed;
  return start(exchange, {.options = std::move(options),
                          .context = std::move(context),
                          .prompts = std::move(prompts),
                          .make_writer = make_writer,
                          .reading = std::move(reading),
                          .chat = true,
                          .prediction = std::move(prediction)});
}

Status Generator::start_completion(const std::shared_ptr<Exchange>& exchange, const CompletionRequest& request,
                                   std::string_view id_prefix, const MakeWriter& make_writer) const {
  QUIRE_RETURN_IF_ERROR(check_generates());
  const PreparationBudget most = budget();
  std::vector<PreparedPrompt> prompts;
  for (const Prompt& prompt : request.prompts) {
    QUIRE_ASSIGN_OR_RETURN(PreparedPrompt prepared, encode(prompt, request, most));
    truncate(request.options, prepared);
    QUIRE_RETURN_IF_ERROR(check_length(prepared, request.options, request.score_only));
    prompts.push_back(std::move(prepared));
  }
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> prediction, encode_prediction(request.options, most));
  AnswerContext context = context_of(exchange->request(), request.options, id_prefix);
  context.prompt_logprobs_asked = request.prompt_logprobs_asked;
  return start(exchange, {.options = request.options,
                          .context = std::move(context),
                          .prompts = std::move(prompts),
                          .make_writer = make_writer,
                          .reading = nullptr,
                          .prediction = std::move(prediction)});
}

}  // namespace quire::server
