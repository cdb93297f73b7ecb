#include "tests/hub/fake_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/check.h"

namespace quire::hub {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// A socket, with TLS over it or without.
class Wire {
 public:
  Wire(int socket, SSL_CTX* context) : socket_(socket) {
    if (context == nullptr) return;
    ssl_ = SSL_new(context);
    SSL_set_fd(ssl_, socket);
    good_ = SSL_accept(ssl_) == 1;
  }
  ~Wire() {
    if (ssl_ != nullptr) SSL_free(ssl_);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  bool good() const { return good_; }
  bool send_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                                           : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  std::optional<FakeRequest> receive() {
    size_t end = 0;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      char part[4096];
      const ssize_t got = ssl_ != nullptr ? SSL_read(ssl_, part, sizeof part) : ::recv(socket_, part, sizeof part, 0);
      if (got <= 0) return std::nullopt;
      received_.append(part, static_cast<size_t>(got));
    }
    FakeRequest request;
    std::string head = received_.substr(0, end + 2);
    received_.erase(0, end + 4);
    const size_t line = head.find("\r\n");
    request.method = head.substr(0, head.find(' '));
    const size_t target = head.find(' ') + 1;
    request.target = head.substr(target, head.find(' ', target) - target);
    for (size_t at = line + 2; at < head.size();) {
      const size_t stop = head.find("\r\n", at);
      const size_t colon = head.find(':', at);
      request.fields[lower(head.substr(at, colon - at))] = head.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    return request;
  }

 private:
  int socket_;
  SSL* ssl_ = nullptr;
  bool good_ = true;
  std::string received_;
};

// False: the connection is to end.
bool send_answer(Wire& wire, const FakeRequest& request, const FakeAnswer& answer) {
  if (!answer.raw.empty()) return wire.send_all(answer.raw) && false;
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " Said\r\n";
  for (const auto& [name, value] : answer.fields) head += name + ": " + value + "\r\n";
  const int64_t length = answer.claimed_length >= 0 ? answer.claimed_length : static_cast<int64_t>(answer.body.size());
  head += "Content-Length: " + std::to_string(length) + "\r\n\r\n";
  if (!wire.send_all(head)) return false;
  if (request.method == "HEAD") return true;
  const bool cut = answer.cut_after >= 0 && answer.cut_after < static_cast<int64_t>(answer.body.size());
  if (!wire.send_all(cut ? answer.body.substr(0, static_cast<size_t>(answer.cut_after)) : answer.body)) return false;
  return !cut && length == static_cast<int64_t>(answer.body.size());
}

X509* make_certificate(EVP_PKEY* key, EVP_PKEY* signer, const char* name, X509* issuer, const char* extension,
                       int nid) {
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), nid);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(certificate, issuer != nullptr ? X509_get_subject_name(issuer) : subject);
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer != nullptr ? issuer : certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* made = X509V3_EXT_conf_nid(nullptr, &context, nid, extension);
  QUIRE_CHECK(made != nullptr);
  X509_add_ext(certificate, made, -1);
  X509_EXTENSION_free(made);
  QUIRE_CHECK(X509_sign(certificate, signer, EVP_sha256()) > 0);
  return certificate;
}

}  // namespace

FakeCertificate::FakeCertificate(const std::string& host) {
  EVP_PKEY* authority_key = EVP_EC_gen("P-256");
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* authority = make_certificate(authority_key, authority_key, "a test's authority", nullptr, "critical,CA:TRUE",
                                     NID_basic_constraints);
  const bool is_address = host.find_first_not_of("0123456789.") == std::string::npos;
  X509* own = make_certificate(key, authority_key, "a test's server", authority,
                               ((is_address ? "IP:" : "DNS:") + host).c_str(), NID_subject_alt_name);
  BIO* text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(text, authority);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text, &data);
  pem.assign(data, static_cast<size_t>(size));
  BIO_free(text);
  SSL_CTX* made = SSL_CTX_new(TLS_server_method());
  QUIRE_CHECK(SSL_CTX_use_certificate(made, own) == 1 && SSL_CTX_use_PrivateKey(made, key) == 1);
  context = made;
  X509_free(own);
  X509_free(authority);
  EVP_PKEY_free(key);
  EVP_PKEY_free(authority_key);
}

FakeCertificate::~FakeCertificate() {
  SSL_CTX_free(static_cast<SSL_CTX*>(context));
}

FakeServer::FakeServer(const std::string& address, Handler handler, const FakeCertificate* certificate)
    : address_(address), handler_(std::move(handler)), certificate_(certificate) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  QUIRE_CHECK(inet_pton(AF_INET, address.c_str(), &where.sin_addr) == 1);
  socklen_t size = sizeof where;
  QUIRE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&where), size) == 0 && ::listen(listener_, 64) == 0);
  QUIRE_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &size) == 0);
  port_ = ntohs(where.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

FakeServer::~FakeServer() {
  ended_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard guard(mutex_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

std::string FakeServer::url() const {
  return (certificate_ != nullptr ? "https://" : "http://") + address_ + ":" + std::to_string(port_);
}

std::vector<FakeRequest> FakeServer::requests() const {
  const std::lock_guard guard(mutex_);
  return requests_;
}

std::vector<FakeRequest> FakeServer::requests_for(const std::string& part) const {
  std::vector<FakeRequest> found = requests();
  std::erase_if(found, [&](const FakeRequest& request) { return request.target.find(part) == std::string::npos; });
  return found;
}

void FakeServer::forget_requests() {
  const std::lock_guard guard(mutex_);
  requests_.clear();
}

void FakeServer::accept_all() {
  while (true) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0 || ended_) {
      if (socket >= 0) ::close(socket);
      return;
    }
    const std::lock_guard guard(mutex_);
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void FakeServer::serve(int socket) {
  Wire wire(socket, certificate_ != nullptr ? static_cast<SSL_CTX*>(certificate_->context) : nullptr);
  while (wire.good()) {
    const auto request = wire.receive();
    if (!request) break;
    {
      const std::lock_guard guard(mutex_);
      requests_.push_back(*request);
    }
    const FakeAnswer answer = handler_(*request);
    if (answer.silent) {
      while (!ended_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      break;
    }
    if (!send_answer(wire, *request, answer)) break;
  }
  ::shutdown(socket, SHUT_RDWR);
}

}  // namespace quire::hub
