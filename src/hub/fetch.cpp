#include "hub/fetch.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/log.h"

namespace quire::hub {
namespace {

using std::chrono::milliseconds;

constexpr int kMostRedirects = 8;

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// What a server says of itself, for a terminal: one line, at most 300 bytes.
std::string shown_text(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 300)) out += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
  while (!out.empty() && (out.back() == ' ' || static_cast<unsigned char>(out.back()) >= 0x80)) out.pop_back();
  return out;
}

// Seconds; a date is not read. -1: there is none.
milliseconds retry_after(const net::HttpHead& head) {
  const std::string_view text = head.field("Retry-After");
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || seconds < 0) return milliseconds(-1);
  return std::chrono::seconds(std::min<int64_t>(seconds, 86'400 * 365));
}

std::string said(std::string_view message) {
  return message.empty() ? "" : fmt::format(" ({})", shown_text(message));
}

Status not_there(const Session& session, std::string_view message) {
  const bool token = !session.options.token.empty();
  return not_found("{} has no model {}, or it is private{}. Check the spelling; {}", session.endpoint.origin(),
                   session.repository, said(message),
                   token ? "if it is private, the token that was sent may not read it"
                         : "if it is private, give a token that may read it (--hf-token, HF_TOKEN, or the token file "
                           "that `hf auth login` writes)");
}

Status gated(const Session& session, std::string_view message) {
  return invalid_argument("{} is gated{}. Ask for access at {}/{} while logged in, then {}", session.repository,
                          said(message), session.endpoint.origin(), session.repository,
                          session.options.token.empty()
                              ? "give a token of that account (--hf-token, HF_TOKEN, or the token file that `hf "
                                "auth login` writes)"
                              : "try again; the token that was sent has no access yet");
}

}  // namespace

Result<Session> Session::make(HubOptions options, std::string repository, std::string revision) {
  Session session;
  auto endpoint = net::parse_url(options.endpoint);
  if (!endpoint.ok()) return endpoint.status().with_prefix("HF_ENDPOINT: ");
  session.endpoint = std::move(*endpoint);
  while (session.endpoint.target.ends_with('/')) session.endpoint.target.pop_back();
  if (std::any_of(options.token.begin(), options.token.end(), [](char c) { return c <= ' ' || c >= '\x7f'; })) {
    return invalid_argument("the token of the Hub holds blanks or characters that are in none");
  }
  if (!options.token.empty() && !session.endpoint.https && !is_loopback(session.endpoint.host)) {
    log_warning("the token is sent to {} without encryption, as HF_ENDPOINT says http://", session.endpoint.origin());
  }
  QUIRE_ASSIGN_OR_RETURN(session.trust, net::TlsTrust::make(options.ca_file, options.ca_folder));
  session.options = std::move(options);
  session.repository = std::move(repository);
  session.revision = std::move(revision);
  return session;
}

void Session::note(const std::string& text) const {
  if (progress != nullptr) progress->note(text);
}

void Session::sleep(milliseconds time) const {
  if (options.sleep) return options.sleep(time);
  constexpr milliseconds kPortion{100};
  for (; time > milliseconds(0) && !stopped(); time -= kPortion) std::this_thread::sleep_for(std::min(time, kPortion));
}

Status Retries::next(const Outcome& outcome) {
  QUIRE_CHECK(!outcome.status.ok());
  if (!outcome.again || session_.stopped()) return outcome.status;
  if (++tries_ >= session_.options.most_tries) {
    return {outcome.status.code(), fmt::format("{} (tried {} times)", outcome.status.message(), tries_)};
  }
  milliseconds wait = session_.options.first_wait * (1 << std::min(tries_ - 1, 10));
  if (outcome.wait >= milliseconds(0)) wait = outcome.wait;
  if (wait > session_.options.most_wait) {
    return {outcome.status.code(),
            fmt::format("{} It asks for a pause of {} s: try again then.", outcome.status.message(),
                        std::chrono::duration_cast<std::chrono::seconds>(wait).count())};
  }
  session_.note(fmt::format("{}; trying again in {:.1f} s", outcome.status.message(),
                            std::chrono::duration<double>(wait).count()));
  session_.sleep(wait);
  return {};
}

Fetcher::Fetcher(const Session& session) : session_(session), client_(session.trust, session.options.timeouts) {}

Outcome Fetcher::attempt(std::string_view method, net::Url url, const net::HttpFields& fields, std::string_view about,
                         const Look& look, net::HttpHead& head) {
  for (int redirects = 0;; ++redirects) {
    net::HttpFields sent = fields;
    sent.emplace_back("User-Agent", session_.options.user_agent);
    const bool own = net::same_origin(url, session_.endpoint);
    // To nobody else, whatever redirect leads there.
    if (own && !session_.options.token.empty()) sent.emplace_back("Authorization", "Bearer " + session_.options.token);
    auto answer = client_.send(method, url, sent);
    if (!answer.ok()) {
      const StatusCode code = answer.status().code();
      if (code == StatusCode::kNotFound) {
        return Outcome::failed(not_found("{} HF_ENDPOINT names a mirror of the Hub", answer.status().message()), false);
      }
      return Outcome::failed(answer.status(),
                             code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded);
    }
    head = std::move(*answer);
    const bool good = head.status == 200 || head.status == 206 || is_redirect(head.status);
    if (!good) return refusal(head, url, about);
    if (own && look) {
      if (Status status = look(head); !status.ok()) return Outcome::failed(std::move(status), false);
    }
    if (!is_redirect(head.status)) return {};
    if (redirects >= kMostRedirects) {
      return Outcome::failed(data_loss("{}: more than {} redirects", about, kMostRedirects), false);
    }
    auto next = net::resolve_reference(url, head.field("Location"));
    if (!next.ok()) return Outcome::failed(next.status().with_prefix(fmt::format("{}: a redirect: ", about)), false);
    if (url.https && !next->https) {
      return Outcome::failed(
          data_loss("{}: {} leads from https to http ({}), which is refused", about, url.origin(), next->origin()),
          false);
    }
    if (method == "HEAD" && !net::same_origin(*next, session_.endpoint)) return {};
    url = std::move(*next);
  }
}

Outcome Fetcher::refusal(const net::HttpHead& head, const net::Url& url, std::string_view about) {
  const std::string_view code = head.field("X-Error-Code");
  const std::string_view message = head.field("X-Error-Message");
  const bool own = net::same_origin(url, session_.endpoint);
  if (head.status == 429) {
    Outcome outcome = Outcome::failed(
        resource_exhausted("{} has had too many requests from here (429){}", url.origin(),
                           session_.options.token.empty() ? "; with a token (HF_TOKEN) more are allowed" : ""),
        true);
    outcome.wait = retry_after(head);
    return outcome;
  }
  if (head.status >= 500 || head.status == 408) {
    Outcome outcome =
        Outcome::failed(unavailable("{} answers {} to {}{}", url.origin(), head.status, about, said(message)), true);
    outcome.wait = retry_after(head);
    return outcome;
  }
  // A signed address that has run out, for example: the Hub gives a new one.
  if (!own) return Outcome::failed(unavailable("{} answers {} to {}", url.origin(), head.status, about), true);
  if (code == "GatedRepo") return Outcome::failed(gated(session_, message), false);
  if (code == "RevisionNotFound") {
    return Outcome::failed(
        not_found("{} has no revision \"{}\": a branch, a tag or a whole commit hash, as {}/{}/commits/main lists them",
                  session_.repository, session_.revision, session_.endpoint.origin(), session_.repository),
        false);
  }
  if (code == "EntryNotFound") return Outcome::failed(not_found("{} has no {}", session_.repository, about), false);
  if (code == "RepoNotFound" || head.status == 404) return Outcome::failed(not_there(session_, message), false);
  if (head.status == 401 || head.status == 403) {
    if (message.find("credentials") != message.npos || message.find("token") != message.npos) {
      return Outcome::failed(invalid_argument("{} does not take the token{}. Make another at {}/settings/tokens",
                                              session_.endpoint.origin(), said(message), session_.endpoint.origin()),
                             false);
    }
    return Outcome::failed(head.status == 401
                               ? not_there(session_, message)
                               : invalid_argument("{} gives no access to {}{}", session_.endpoint.origin(),
                                                  session_.repository, said(message)),
                           false);
  }
  return Outcome::failed(
      data_loss("{} answers {} to {}{}", session_.endpoint.origin(), head.status, about, said(message)), false);
}

Result<std::string> Fetcher::get(const net::Url& url, std::string_view about, size_t most_bytes, net::HttpHead* head) {
  Retries retries(session_);
  while (true) {
    net::HttpHead got;
    Outcome outcome = attempt("GET", url, {}, about, {}, got);
    if (outcome.status.ok()) {
      auto body = client_.read_all(most_bytes);
      if (body.ok()) {
        if (head != nullptr) *head = std::move(got);
        return body;
      }
      const StatusCode code = body.status().code();
      outcome = Outcome::failed(body.status().with_prefix(fmt::format("{}: ", about)),
                                code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded);
    }
    QUIRE_RETURN_IF_ERROR(retries.next(outcome));
  }
}

net::Url at_endpoint(const Session& session, std::string_view target) {
  net::Url url = session.endpoint;
  url.target += target;
  return url;
}

}  // namespace quire::hub
