#include "server/span_exporter.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/log.h"
#include "net/http_client.h"
#include "server/http.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostAnswerBytes = 64 << 10;  // of a collector's answer that is read
constexpr size_t kMostReason = 200;            // bytes of what it says that are logged

// Seconds; a date is not heeded.
milliseconds retry_after_of(std::string_view field) {
  int64_t seconds = -1;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), seconds);
  if (error != std::errc() || end != field.data() + field.size() || seconds < 0) return milliseconds(-1);
  return milliseconds(std::min<int64_t>(seconds, 86'400) * 1000);
}

// What a stranger says, on a line of ours.
std::string one_line(std::string_view text) {
  std::string out(text.substr(0, kMostReason));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = ' ';
  }
  return out;
}

bool passes(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

Status check_header(const std::string& name, const std::string& value) {
  constexpr std::string_view kInNames = "!#$%&'*+-.^_`|~";
  const bool good_name = !name.empty() && std::ranges::all_of(name, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kInNames.find(c) != std::string_view::npos;
  });
  if (!good_name) return invalid_argument("\"{}\" is no name of a header.", one_line(name));
  if (std::ranges::any_of(value, [](char c) { return c < ' ' || c > '~'; })) {
    return invalid_argument("the header {} holds characters that belong into none.", name);
  }
  return {};
}

// A client that posts to one place.
PostSpans posting_to(const net::Url& url, const SpanExportOptions& options, const std::string& version,
                     std::shared_ptr<const net::TlsTrust> trust) {
  const bool as_json = options.encoding == SpanEncoding::kJson;
  net::HttpFields fields{{"Content-Type", as_json ? "application/json" : "application/x-protobuf"},
                         {"User-Agent", "quire/" + version}};
  for (const auto& header : options.headers) fields.push_back(header);
  const milliseconds limit = options.post_timeout;
  auto client = std::make_shared<net::HttpClient>(
      std::move(trust), net::HttpTimeouts{.connect = limit, .head = limit, .read = limit, .whole = limit});
  return [url, fields, client](const std::string& body) -> Result<PostOutcome> {
    QUIRE_ASSIGN_OR_RETURN(const net::HttpHead head, client->send("POST", url, fields, body));
    PostOutcome outcome{.status = head.status, .retry_after = retry_after_of(head.field("Retry-After")), .body = {}};
    char part[4096];
    while (outcome.body.size() < kMostAnswerBytes) {
      // The status has told already; the rest of a broken answer says nothing more.
      const auto got = client->read(part, sizeof part);
      if (!got.ok() || *got == 0) break;
      outcome.body.append(part, *got);
    }
    return outcome;
  };
}

}  // namespace

struct SpanExporter::State {
  State(const SpanExportOptions& span_options, const std::string& version, Metrics& metrics, PostSpans post_spans)
      : options(span_options),
        source{.service_name = options.service_name, .version = version, .attributes = options.resource},
        shown_endpoint(options.endpoint.substr(0, options.endpoint.find('?'))),
        post(std::move(post_spans)),
        exported(&metrics.counter("quire:otlp_spans_exported_total", "Spans that the collector has taken.")),
        dropped(&metrics.counter("quire:otlp_spans_dropped_total",
                                 "Spans that were lost: too many waited, or the collector did not take them.")) {}

  struct Verdict {
    int64_t taken = 0;    // of the batch's spans
    bool again = false;   // the others may be taken the next time
    std::string trouble;  // empty: all is well
    milliseconds wait{-1};
  };

  void run();
  bool next_batch(std::vector<Span>& batch, bool& is_last);
  void send(const std::vector<Span>& batch, bool is_last);
  Verdict try_once(const std::string& body, int64_t num_spans);
  void tell(const std::string& trouble);
  milliseconds pause(int tries, milliseconds asked);

  const SpanExportOptions options;
  const SpanSource source;
  const std::string shown_endpoint;  // in the log: a query may be a secret
  const PostSpans post;

  std::mutex mutex;
  std::condition_variable bell;   // for the thread
  std::condition_variable ended;  // for stop()
  // Guarded by mutex, like all below but what is the thread's.
  std::deque<Span> queue;
  Counter* exported;  // nullptr when released, like the next
  Counter* dropped;
  int64_t in_flight = 0;
  bool stopping = false;
  bool over = false;
  bool released = false;  // stop() is over: whatever still runs tells nobody any more

  // The thread's.
  bool in_trouble = false;
  std::minstd_rand random{std::random_device()()};
  std::thread thread;
};

void SpanExporter::State::run() {
  std::vector<Span> batch;
  bool is_last = false;
  while (next_batch(batch, is_last)) {
    try {
      send(batch, is_last);
    } catch (const std::exception& error) {  // no memory, most likely
      log_error("{} spans cannot be written: {}", batch.size(), error.what());
      const std::lock_guard lock(mutex);
      if (!released) dropped->increment(static_cast<double>(std::exchange(in_flight, 0)));
    }
    batch.clear();
  }
  const std::lock_guard lock(mutex);
  over = true;
  ended.notify_all();
}

// False: the server stops, and nothing is left.
bool SpanExporter::State::next_batch(std::vector<Span>& batch, bool& is_last) {
  std::unique_lock lock(mutex);
  bell.wait(lock, [&] { return stopping || !queue.empty(); });
  bell.wait_for(lock, options.delay, [&] { return stopping || queue.size() >= options.max_batch; });
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min(queue.size(), options.max_batch));
  batch.assign(std::make_move_iterator(queue.begin()), std::make_move_iterator(end));
  queue.erase(queue.begin(), end);
  in_flight = static_cast<int64_t>(batch.size());
  is_last = stopping;
  return !released && !batch.empty();
}

// A batch that the server's stop finds between two tries has one more.
void SpanExporter::State::send(const std::vector<Span>& batch, bool is_last) {
  const auto count = static_cast<int64_t>(batch.size());
  const std::string body = options.encoding == SpanEncoding::kJson ? encode_spans_as_json(source, batch)
                                                                   : encode_spans_as_protobuf(source, batch);
  for (int tries = 1;; ++tries) {
    const Verdict verdict = try_once(body, count);
    tell(verdict.trouble);
    std::unique_lock lock(mutex);
    if (released) return;
    if (!verdict.again || tries >= options.most_tries || is_last) {
      exported->increment(static_cast<double>(verdict.taken));
      dropped->increment(static_cast<double>(count - verdict.taken));
      in_flight = 0;
      return;
    }
    bell.wait_for(lock, pause(tries, verdict.wait), [&] { return stopping; });
    is_last = stopping;
  }
}

SpanExporter::State::Verdict SpanExporter::State::try_once(const std::string& body, int64_t num_spans) {
  Result<PostOutcome> outcome = internal_error("nothing was sent");
  try {
    outcome = post(body);
  } catch (const std::exception& error) {  // no memory, most likely
    outcome = internal_error("{}", error.what());
  }
  if (!outcome.ok()) return {.again = true, .trouble = one_line(outcome.status().message())};
  const int status = outcome->status;
  if (status < 200 || status > 299) {
    return {.again = passes(status),
            .trouble = fmt::format("the collector answers {} {}", status, reason_phrase(status)),
            .wait = outcome->retry_after};
  }
  const PartialSuccess said = options.encoding == SpanEncoding::kJson
                                  ? parse_partial_success_of_json(outcome->body)
                                  : parse_partial_success_of_protobuf(outcome->body);
  const int64_t rejected = std::min(said.rejected, num_spans);
  if (rejected == 0) return {.taken = num_spans};
  return {
      .taken = num_spans - rejected,
      .trouble = fmt::format("the collector refuses {} of {} spans: {}", rejected, num_spans, one_line(said.message))};
}

// A line when it begins to go wrong, and one when all is well again.
void SpanExporter::State::tell(const std::string& trouble) {
  if (trouble.empty() == !in_trouble) return;
  {
    const std::lock_guard lock(mutex);
    if (released) return;
  }
  in_trouble = !trouble.empty();
  if (in_trouble) {
    log_warning("spans cannot be sent to {}: {}. Those that are lost are counted in quire:otlp_spans_dropped_total",
                shown_endpoint, trouble);
  } else {
    log_info("spans are sent to {} again", shown_endpoint);
  }
}

// Each wait twice the one before, give or take a fifth: many servers may have one collector.
milliseconds SpanExporter::State::pause(int tries, milliseconds asked) {
  if (asked >= milliseconds(0)) return std::min(asked, options.most_wait);
  const milliseconds wait = std::min(options.first_wait * (1 << std::min(tries - 1, 10)), options.most_wait);
  std::uniform_real_distribution<double> around(0.8, 1.2);
  return std::chrono::duration_cast<milliseconds>(wait * around(random));
}

SpanExporter::SpanExporter(std::shared_ptr<State> state) : state_(std::move(state)) {
  state_->thread = std::thread([state = state_] { state->run(); });
}

Result<std::shared_ptr<SpanExporter>> SpanExporter::start(const SpanExportOptions& options, const std::string& version,
                                                          Metrics& metrics) {
  QUIRE_ASSIGN_OR_RETURN(const net::Url url, net::parse_url(options.endpoint));
  for (const auto& [name, value] : options.headers) QUIRE_RETURN_IF_ERROR(check_header(name, value));
  QUIRE_ASSIGN_OR_RETURN(auto trust, net::TlsTrust::make(options.ca_file, options.ca_folder));
  log_info("a span of each request to a model is sent to {}{}", url.origin(),
           url.target.substr(0, url.target.find('?')));
  return start(options, version, metrics, posting_to(url, options, version, std::move(trust)));
}

std::shared_ptr<SpanExporter> SpanExporter::start(const SpanExportOptions& options, const std::string& version,
                                                  Metrics& metrics, PostSpans post) {
  return std::shared_ptr<SpanExporter>(
      new SpanExporter(std::make_shared<State>(options, version, metrics, std::move(post))));
}

const SpanExportOptions& SpanExporter::options() const {
  return state_->options;
}

SpanExporter::~SpanExporter() {
  stop();
}

void SpanExporter::add(Span span) {
  const std::lock_guard lock(state_->mutex);
  if (state_->released) return;
  if (state_->stopping || state_->queue.size() >= state_->options.max_queue) return state_->dropped->increment();
  state_->queue.push_back(std::move(span));
  const size_t waiting = state_->queue.size();
  if (waiting == 1 || waiting == state_->options.max_batch) state_->bell.notify_one();
}

void SpanExporter::stop() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.stopping) return;
  state.stopping = true;
  state.bell.notify_all();
  const bool over = state.ended.wait_for(lock, state.options.stop_timeout, [&] { return state.over; });
  const int64_t lost = static_cast<int64_t>(state.queue.size()) + state.in_flight;
  state.dropped->increment(static_cast<double>(lost));
  state.queue.clear();
  state.released = true;
  state.exported = nullptr;
  state.dropped = nullptr;
  lock.unlock();
  if (over) return state.thread.join();
  state.thread.detach();
  log_warning("{} spans are lost: the collector did not take them in the time that there is for it", lost);
}

}  // namespace quire::server
