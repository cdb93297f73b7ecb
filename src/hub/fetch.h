// Requests to the Hub: redirects followed without taking the token along, what may pass tried again, what may not told
// in a sentence that says what to do.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/options.h"
#include "net/http_client.h"
#include "net/url.h"

namespace quire::hub {

// What all requests about one model share. Immutable but for the note; any thread.
struct Session {
  HubOptions options;
  net::Url endpoint;
  std::shared_ptr<const net::TlsTrust> trust;
  std::string repository;  // "ORG/NAME"
  std::string revision;    // as the user said it
  Progress* progress = nullptr;
  // Set: every wait and every transfer ends soon. One worker's failure stops the others.
  std::atomic<bool>* stop = nullptr;

  // Errors: invalid_argument for an endpoint, a token or certificates that cannot be used.
  static Result<Session> make(HubOptions options, std::string repository, std::string revision);
  void note(const std::string& text) const;
  // Sleeps, in portions where it may be stopped.
  void sleep(std::chrono::milliseconds time) const;
  bool stopped() const { return stop != nullptr && stop->load(); }
};

// One attempt's end.
struct Outcome {
  Status status;
  bool again = false;                  // may go well the next time
  std::chrono::milliseconds wait{-1};  // what the server asked for (Retry-After); -1: nothing

  static Outcome failed(Status status, bool again) {
    return {.status = std::move(status), .again = again, .wait = std::chrono::milliseconds(-1)};
  }
};

// Counts tries and waits between them.
class Retries {
 public:
  explicit Retries(const Session& session) : session_(session) {}
  // There was progress: the count begins anew.
  void progressed() { tries_ = 0; }
  // After a failure: waits and returns ok, or returns why there is no other try.
  Status next(const Outcome& outcome);

 private:
  const Session& session_;
  int tries_ = 0;
};

// One thread's.
class Fetcher {
 public:
  explicit Fetcher(const Session& session);

  // The answer's head, with its body to be read from client(): status 200 or 206. `look` sees the head of every answer
  // from the endpoint's own origin on the way, where the Hub says what a file is; its error ends the request.
  // A HEAD stays at the endpoint's origin: a redirect elsewhere is its answer (an address that is signed for a GET
  // refuses it). `about`: "the listing", "config.json", for messages.
  using Look = std::function<Status(const net::HttpHead&)>;
  Outcome attempt(std::string_view method, net::Url url, const net::HttpFields& fields, std::string_view about,
                  const Look& look, net::HttpHead& head);

  // The body of a GET with all tries. `head` may be null.
  Result<std::string> get(const net::Url& url, std::string_view about, size_t most_bytes, net::HttpHead* head);

  net::HttpClient& client() { return client_; }

 private:
  Outcome refusal(const net::HttpHead& head, const net::Url& url, std::string_view about);

  const Session& session_;
  net::HttpClient client_;
};

// Of the endpoint: "/api/..." becomes an address.
net::Url at_endpoint(const Session& session, std::string_view target);

}  // namespace quire::hub
