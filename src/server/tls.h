// TLS as the server offers it: version 1.2 or later, a certificate of its own, client certificates where asked for.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/ssl/context.hpp>

#include "base/status.h"
#include "server/http_server.h"

namespace quire::server {

// Reads the files. Errors: invalid_argument, naming the flag whose file cannot be read or does not fit.
// REQUIRES: options.on().
Result<std::unique_ptr<boost::asio::ssl::context>> make_tls_context(const TlsOptions& options);

}  // namespace quire::server
