// Sends spans to a collector, in the background: whoever adds one waits for nobody, and a collector that is away, slow
// or broken costs its spans alone. Counted in quire:otlp_spans_exported_total and quire:otlp_spans_dropped_total.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "server/otlp.h"

namespace quire::server {

enum class SpanEncoding { kJson, kProtobuf };

// Which requests are traced.
struct SpanSampling {
  bool heeds_parent = true;  // of who asks with a trace of its own: as that trace says
  double ratio = 1;          // of the others: this share of the traces' ids
};

struct SpanExportOptions {
  std::string endpoint;                                      // http:// or https://, with its path; empty: no spans
  std::vector<std::pair<std::string, std::string>> headers;  // of each request: often a secret
  SpanEncoding encoding = SpanEncoding::kJson;
  std::string service_name = "quire";
  std::vector<std::pair<std::string, std::string>> resource;  // what else is to be said of who sends them
  SpanSampling sampling;
  std::string ca_file, ca_folder;  // whom to trust with https; both empty: the system's authorities

  size_t max_queue = 2048;                        // spans that wait to be sent; what comes beyond them is dropped
  size_t max_batch = 512;                         // of one request
  std::chrono::milliseconds delay{5000};          // that a span waits, at most, for others to go with it
  std::chrono::milliseconds post_timeout{10000};  // of one request, but for the system's resolver of names
  int most_tries = 5;                             // of one batch
  std::chrono::milliseconds first_wait{1000};     // before the second try; doubled before each one after it
  std::chrono::milliseconds most_wait{300000};    // whatever a collector asks for by Retry-After
  std::chrono::milliseconds stop_timeout{3000};   // for what is left, when the server stops
};

// What came of sending a batch.
struct PostOutcome {
  int status = 0;                             // of HTTP
  std::chrono::milliseconds retry_after{-1};  // that the answer asks for; below 0: it does not
  std::string body;                           // its beginning
};
using PostSpans = std::function<Result<PostOutcome>(const std::string& body)>;

class SpanExporter {
 public:
  // The metrics must outlive stop(). Errors: invalid_argument: the endpoint is no address of http or https, a header
  // cannot be one, certificates cannot be read.
  static Result<std::shared_ptr<SpanExporter>> start(const SpanExportOptions& options, const std::string& version,
                                                     Metrics& metrics);
  // The same over another way to send: `post` is called by one thread.
  static std::shared_ptr<SpanExporter> start(const SpanExportOptions& options, const std::string& version,
                                             Metrics& metrics, PostSpans post);
  ~SpanExporter();  // stop()
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  const SpanExportOptions& options() const;
  // Any thread; never waits. Dropped when too many wait, and after stop().
  void add(Span span);
  // Sends what waits, each batch once and all within stop_timeout; the rest is dropped. Idempotent.
  void stop();

 private:
  struct State;
  explicit SpanExporter(std::shared_ptr<State> state);
  // The thread's too: one that hangs in the resolver of names outlives us.
  std::shared_ptr<State> state_;
};

}  // namespace quire::server
