#include "text/tokenizer_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/tokenizer_normalizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

using Sink = DecoderStage::Sink;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  while (!from.empty()) {
    const size_t found = text.find(from, done);
    if (found == std::string_view::npos) break;
    out.append(text.substr(done, found - done)).append(to);
    done = found + from.size();
  }
  out.append(text.substr(done));
  return out;
}

// A stage that turns each token into another, whatever came before.
class MapStage final : public DecoderStage {
 public:
  explicit MapStage(std::function<std::string(std::string)> map) : map_(std::move(map)) {}
  void push(std::string token, const Sink& sink) override { sink(map_(std::move(token))); }

 private:
  std::function<std::string(std::string)> map_;
};

class ByteLevelStage final : public DecoderStage {
 public:
  void push(std::string token, const Sink& sink) override {
    std::string bytes;
    if (!ByteAlphabet::get().to_bytes(token, bytes)) bytes = std::move(token);
    pending_.append(bytes);
    const size_t complete = pending_.size() - incomplete_utf8_suffix(pending_);
    std::string text;
    append_lossy_utf8(std::string_view(pending_).substr(0, complete), text);
    pending_.erase(0, complete);
    sink(std::move(text));
  }
  void finish(const Sink& sink) override {
    std::string text;
    append_lossy_utf8(pending_, text);
    sink(std::move(text));
  }

 private:
  std::string pending_;
};

// A run of bytes is text when all of it is; else every byte is U+FFFD. So a run waits for its end.
class ByteFallbackStage final : public DecoderStage {
 public:
  void push(std::string token, const Sink& sink) override {
    if (const auto byte = byte_of_token(token)) {
      run_.push_back(static_cast<char>(*byte));
      return;
    }
    finish(sink);
    sink(std::move(token));
  }
  void finish(const Sink& sink) override {
    if (run_.empty()) return;
    const std::string run = std::exchange(run_, {});
    if (is_valid_utf8(run)) {
      sink(run);
    } else {
      for (size_t i = 0; i < run.size(); ++i) sink(std::string(kReplacementCharacter));
    }
  }

 private:
  std::string run_;
};

class GatherStage final : public DecoderStage {
 public:
  void push(std::string token, const Sink&) override { all_.append(token); }
  void finish(const Sink& sink) override { sink(std::move(all_)); }

 private:
  std::string all_;
};

class MetaspaceStage final : public DecoderStage {
 public:
  MetaspaceStage(std::string replacement, bool everywhere)
      : replacement_(std::move(replacement)), first_(!everywhere) {}
  void push(std::string token, const Sink& sink) override {
    sink(replace_all(token, replacement_, std::exchange(first_, false) ? "" : " "));
  }

 private:
  std::string replacement_;
  bool first_;
};

std::string strip_token(std::string_view token, std::string_view content, int64_t start, int64_t stop) {
  for (; start > 0 && token.starts_with(content); --start) token.remove_prefix(content.size());
  for (; stop > 0 && token.ends_with(content); --stop) token.remove_suffix(content.size());
  return std::string(token);
}

// Strip on a text that comes in parts: what may be stripped from the end waits.
class StripTextStage final : public DecoderStage {
 public:
  StripTextStage(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void push(std::string part, const Sink& sink) override {
    std::string_view text = part;
    while (start_ > 0 && !text.empty()) {
      if (text.starts_with(content_)) {
        text.remove_prefix(content_.size());
        --start_;
      } else {
        start_ = 0;
      }
    }
    held_.append(text);
    size_t hold = 0;
    for (int64_t i = 0; i < stop_ && std::string_view(held_).substr(0, held_.size() - hold).ends_with(content_); ++i) {
      hold += content_.size();
    }
    std::string rest = held_.substr(held_.size() - hold);
    held_.resize(held_.size() - hold);
    sink(std::exchange(held_, std::move(rest)));
  }

 private:
  std::string content_;
  int64_t start_, stop_;
  std::string held_;  // as many of `content_` as are stripped when the text ends here
};

// What BERT's decoder makes of spaces before punctuation and in English contractions.
std::string clean_up(std::string_view token) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{{" .", "."},
                                                                                     {" ?", "?"},
                                                                                     {" !", "!"},
                                                                                     {" ,", ","},
                                                                                     {" ' ", "'"},
                                                                                     {" n't", "n't"},
                                                                                     {" 'm", "'m"},
                                                                                     {" do not", " don't"},
                                                                                     {" 's", "'s"},
                                                                                     {" 've", "'ve"},
                                                                                     {" 're", "'re"}}};
  std::string text(token);
  for (const auto& [from, to] : kRules) text = replace_all(text, from, to);
  return text;
}

class WordPieceStage final : public DecoderStage {
 public:
  WordPieceStage(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void push(std::string token, const Sink& sink) override {
    if (!std::exchange(first_, false)) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    sink(cleanup_ ? clean_up(token) : std::move(token));
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

// The last token's suffix vanishes, any other is a space: so one token waits.
class BpeStage final : public DecoderStage {
 public:
  explicit BpeStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void push(std::string token, const Sink& sink) override {
    if (waiting_) sink(replace_all(*waiting_, suffix_, " "));
    waiting_ = std::move(token);
  }
  void finish(const Sink& sink) override {
    if (waiting_) sink(replace_all(*waiting_, suffix_, ""));
    waiting_.reset();
  }

 private:
  std::string suffix_;
  std::optional<std::string> waiting_;
};

class CtcStage final : public DecoderStage {
 public:
  CtcStage(std::string pad, std::string word_delimiter, bool cleanup)
      : pad_(std::move(pad)), word_delimiter_(std::move(word_delimiter)), cleanup_(cleanup) {}
  void push(std::string token, const Sink& sink) override {
    if (previous_ == token) return;
    previous_ = token;
    std::string text = replace_all(token, pad_, "");
    if (cleanup_) text = replace_all(clean_up(text), word_delimiter_, " ");
    if (!text.empty()) sink(std::move(text));
  }

 private:
  std::string pad_, word_delimiter_;
  bool cleanup_;
  std::optional<std::string> previous_;
};

class JoinStage final : public DecoderStage {
 public:
  explicit JoinStage(std::string separator) : separator_(std::move(separator)) {}
  void push(std::string token, const Sink& sink) override {
    if (!std::exchange(first_, false)) token.insert(0, separator_);
    sink(std::move(token));
  }

 private:
  std::string separator_;
  bool first_ = true;
};

class SentencePieceStage final : public DecoderStage {
 public:
  explicit SentencePieceStage(const SentencePieceDecoderOptions& options) : options_(options) {}

  void push(std::string token, const Sink& sink) override {
    if (const auto byte = byte_of_token(token)) {
      bytes_.push_back(static_cast<char>(*byte));
      put_bytes(bytes_.size() - incomplete_utf8_suffix(bytes_), sink);
      return;
    }
    put_bytes(bytes_.size(), sink);
    if (at_begin_ && token.starts_with(kSpaceSymbol) && (options_.strips_one_space || options_.strips_all_spaces)) {
      token.erase(0, kSpaceSymbol.size());
      if (!options_.strips_all_spaces) at_begin_ = false;
    }
    put(replace_all(token, kSpaceSymbol, " "), sink);
  }

  void finish(const Sink& sink) override { put_bytes(bytes_.size(), sink); }

 private:
  void put(std::string text, const Sink& sink) {
    if (text.empty()) return;
    at_begin_ = false;
    sink(std::move(text));
  }
  void put_bytes(size_t count, const Sink& sink) {
    if (count == 0) return;
    std::string text;
    for (size_t i = 0; i < count;) {
      const Utf8Sequence sequence = next_utf8_sequence(std::string_view(bytes_).substr(0, count), i);
      if (sequence.state == Utf8State::kWellFormed) {
        text.append(bytes_, i, sequence.length);
        i += sequence.length;
      } else {
        text.append(kReplacementCharacter);
        ++i;
      }
    }
    bytes_.erase(0, count);
    put(std::move(text), sink);
  }

  SentencePieceDecoderOptions options_;
  bool at_begin_ = true;
  std::string bytes_;  // of characters that are not complete
};

}  // namespace

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (digit < 0) return std::nullopt;
    value = 16 * value + digit;
  }
  return static_cast<unsigned char>(value);
}

DecoderStep byte_level_decoder() {
  return [] { return std::make_unique<ByteLevelStage>(); };
}
DecoderStep byte_fallback_decoder() {
  return [] { return std::make_unique<ByteFallbackStage>(); };
}
DecoderStep gather_decoder() {
  return [] { return std::make_unique<GatherStage>(); };
}
DecoderStep metaspace_decoder(std::string replacement, bool everywhere) {
  return [=] { return std::make_unique<MetaspaceStage>(replacement, everywhere); };
}
DecoderStep strip_decoder(std::string content, int64_t start, int64_t stop, bool of_whole_text) {
  return [=]() -> std::unique_ptr<DecoderStage> {
    if (of_whole_text) return std::make_unique<StripTextStage>(content, start, stop);
    return std::make_unique<MapStage>(
        [=](const std::string& token) { return strip_token(token, content, start, stop); });
  };
}
DecoderStep replace_decoder(std::shared_ptr<const Pattern> pattern, std::string content) {
  return [=] {
    return std::make_unique<MapStage>([=](const std::string& token) {
      std::vector<PatternSpan> spans;
      pattern->find(token, spans);
      std::string out;
      for (const PatternSpan& span : spans) {
        out.append(span.is_match ? std::string_view(content)
                                 : std::string_view(token).substr(span.begin, span.end - span.begin));
      }
      return out;
    });
  };
}
DecoderStep word_piece_decoder(std::string prefix, bool cleanup) {
  return [=] { return std::make_unique<WordPieceStage>(prefix, cleanup); };
}
DecoderStep bpe_decoder(std::string suffix) {
  return [=] { return std::make_unique<BpeStage>(suffix); };
}
DecoderStep ctc_decoder(std::string pad, std::string word_delimiter, bool cleanup) {
  return [=] { return std::make_unique<CtcStage>(pad, word_delimiter, cleanup); };
}
DecoderStep join_decoder(std::string separator) {
  return [=] { return std::make_unique<JoinStage>(separator); };
}
DecoderStep sentencepiece_decoder(const SentencePieceDecoderOptions& options) {
  return [=] { return std::make_unique<SentencePieceStage>(options); };
}

DecoderChain::Stream::Stream(const DecoderChain& chain) {
  for (const DecoderStep& step : chain.steps_) stages_.push_back(step());
}

void DecoderChain::Stream::push_from(size_t stage, std::string token, std::string& text) {
  if (stage == stages_.size()) {
    text.append(token);
    return;
  }
  stages_[stage]->push(std::move(token), [&](std::string next) { push_from(stage + 1, std::move(next), text); });
}

void DecoderChain::Stream::push(std::string_view token, std::string& text) {
  push_from(0, std::string(token), text);
}

void DecoderChain::Stream::finish(std::string& text) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage]->finish([&](std::string next) { push_from(stage + 1, std::move(next), text); });
  }
}

}  // namespace quire::text
