// A small HTTP server on loopback, a thread a connection, that answers as a test says: also wrongly. 127.0.0.2 is
// another host than 127.0.0.1.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quire::hub {

struct FakeRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> fields;  // names in lower case
};

struct FakeAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::string body = {};
  int64_t cut_after = -1;       // the connection ends after so many bytes of the body
  int64_t claimed_length = -1;  // Content-Length, where it is not the body's
  bool silent = false;          // nothing comes at all
  std::string raw = {};         // these bytes and no others
};

// A certificate of its own authority, made anew.
struct FakeCertificate {
  explicit FakeCertificate(const std::string& host);  // a name or an IPv4 address
  ~FakeCertificate();
  std::string pem;  // of the authority: what a client is to trust
  void* context;    // SSL_CTX
};

class FakeServer {
 public:
  using Handler = std::function<FakeAnswer(const FakeRequest&)>;
  FakeServer(const std::string& address, Handler handler, const FakeCertificate* certificate = nullptr);
  ~FakeServer();

  // "http://127.0.0.1:1234"
  std::string url() const;
  std::vector<FakeRequest> requests() const;
  // Those whose target holds `part`.
  std::vector<FakeRequest> requests_for(const std::string& part) const;
  void forget_requests();

 private:
  void accept_all();
  void serve(int socket);

  const std::string address_;
  const Handler handler_;
  const FakeCertificate* certificate_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<FakeRequest> requests_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::atomic<bool> ended_{false};
  std::thread acceptor_;
};

}  // namespace quire::hub
