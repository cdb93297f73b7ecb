#include "server/tls.h"

#include <openssl/ssl.h>

namespace quire::server {
namespace ssl = boost::asio::ssl;
using boost::system::error_code;

namespace {

Status check(const TlsOptions& options) {
  if (options.certfile.empty()) {
    return invalid_argument("--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need --ssl-certfile.");
  }
  if (options.cert_reqs < 0 || options.cert_reqs > 2) {
    return invalid_argument("--ssl-cert-reqs is {}; it must be 0 (no client certificates), 1 (optional) or 2.",
                            options.cert_reqs);
  }
  if ((options.cert_reqs > 0) != !options.ca_certs.empty()) {
    return invalid_argument(
        "--ssl-cert-reqs 1 or 2 and --ssl-ca-certs belong together: clients' certificates are checked against those.");
  }
  return {};
}

Status failed(const char* flag, const std::string& path, const error_code& error) {
  return invalid_argument("{} {}: {}.", flag, path, error.message());
}

int verify_mode(int cert_reqs) {
  if (cert_reqs == 0) return ssl::verify_none;
  return ssl::verify_peer | (cert_reqs == 2 ? ssl::verify_fail_if_no_peer_cert : 0);
}

}  // namespace

Result<std::unique_ptr<ssl::context>> make_tls_context(const TlsOptions& options) {
  QUIRE_RETURN_IF_ERROR(check(options));
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections hold less
  constexpr unsigned char kSessions[] = "quire";       // without a name, sessions of clients with certificates fail
  SSL_CTX_set_session_id_context(native, kSessions, sizeof kSessions - 1);
  error_code error;
  // Never asked for on the terminal: a server starts alone.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  if (!error) context->use_certificate_chain_file(options.certfile, error);
  if (error) return failed("--ssl-certfile", options.certfile, error);
  const std::string& keyfile = options.keyfile.empty() ? options.certfile : options.keyfile;
  context->use_private_key_file(keyfile, ssl::context::pem, error);
  if (error) return failed("--ssl-keyfile", keyfile, error);
  if (SSL_CTX_check_private_key(native) != 1) {
    return invalid_argument("--ssl-keyfile {} does not belong to the certificate in {}.", keyfile, options.certfile);
  }
  if (options.cert_reqs > 0) {
    context->load_verify_file(options.ca_certs, error);
    if (error) return failed("--ssl-ca-certs", options.ca_certs, error);
    if (STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(options.ca_certs.c_str())) {
      SSL_CTX_set_client_CA_list(native, names);  // which takes it
    }
  }
  context->set_verify_mode(verify_mode(options.cert_reqs), error);
  if (error) return internal_error("TLS: {}", error.message());
  return context;
}

}  // namespace quire::server
