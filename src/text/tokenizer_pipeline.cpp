#include "text/tokenizer_pipeline.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

// The pieces as one valid text, and where that may be trusted.
struct JoinedText {
  std::string text;
  TrustedRanges trusted;
};

// A range for each trusted piece, in bytes of the text as it was given; adjacent ones are one.
TrustedRanges ranges_of(std::span<const TextPiece> pieces) {
  TrustedRanges ranges;
  size_t begin = 0;
  for (const TextPiece& piece : pieces) {
    const size_t end = begin + piece.text.size();
    if (piece.trusted && end > begin) {
      if (!ranges.empty() && ranges.back().second == begin) {
        ranges.back().second = end;
      } else {
        ranges.emplace_back(begin, end);
      }
    }
    begin = end;
  }
  return ranges;
}

// Replaces ill-formed bytes and moves the ranges with the text. Bytes of an ill-formed sequence are not trusted.
JoinedText replace_ill_formed(std::string_view raw, const TrustedRanges& ranges) {
  JoinedText joined;
  auto range = ranges.begin();
  bool is_open = false;  // a trusted range is being written, which began at `open`
  size_t open = 0;
  const auto close = [&] {
    if (is_open && joined.text.size() > open) joined.trusted.emplace_back(open, joined.text.size());
    is_open = false;
  };
  for (size_t i = 0; i < raw.size();) {
    const Utf8Sequence sequence = next_utf8_sequence(raw, i);
    if (sequence.state == Utf8State::kWellFormed) {
      for (const size_t stop = i + sequence.length; i < stop; ++i) {
        while (range != ranges.end() && range->second <= i) ++range;
        const bool trusted = range != ranges.end() && range->first <= i;
        if (!trusted) close();
        if (trusted && !is_open) {
          is_open = true;
          open = joined.text.size();
        }
        joined.text.push_back(raw[i]);
      }
    } else {
      close();
      joined.text.append(kReplacementCharacter);
      i += sequence.length;
    }
  }
  close();
  return joined;
}

}  // namespace

// What a token adds to a text between two others: a letter on either side keeps it from being the first or the last.
class PipelineTokenizer::ChainProbe {
 public:
  explicit ChainProbe(const DecoderChain& chain) : chain_(chain), running_(chain) {
    std::string text;
    running_.push(kLetter, text);
    const bool prompt = text == kLetter;
    text.clear();
    running_.push(kLetter, text);
    is_prompt_ = prompt && text.ends_with(kLetter);
    tail_ = text;
  }

  std::string between(const std::string& token) {
    // A chain that holds nothing back behind a letter can go on with the next token; one that does (it looks at the
    // token after, or gathers all) begins anew for each.
    if (!is_prompt_ || token == kLetter) return between_in_a_text_of_its_own(token);
    std::string text;
    running_.push(token, text);
    running_.push(kLetter, text);
    if (!text.ends_with(tail_)) return between_in_a_text_of_its_own(token);
    text.resize(text.size() - tail_.size());
    return text;
  }

 private:
  static constexpr std::string_view kLetter = "x";

  std::string between_in_a_text_of_its_own(const std::string& token) const {
    std::string text;
    DecoderChain::Stream stream(chain_);
    stream.push(kLetter, text);
    stream.push(token, text);
    stream.push("y", text);
    stream.finish(text);
    std::string between;
    DecoderChain::Stream pair(chain_);
    pair.push(kLetter, between);
    pair.push("y", between);
    pair.finish(between);
    const size_t tail = between.size() - std::min(between.size(), kLetter.size());
    if (text.size() < kLetter.size() + tail || !text.starts_with(kLetter)) return token;
    return text.substr(kLetter.size(), text.size() - kLetter.size() - tail);
  }

  const DecoderChain& chain_;
  DecoderChain::Stream running_;
  bool is_prompt_ = false;
  std::string tail_;  // what a letter becomes between two others
};

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  const auto size = static_cast<size_t>(parts_.tokens.size());
  special_.resize(size, false);
  for (const AddedToken& token : parts_.added) {
    if (token.normalized) {
      AddedToken searched = token;
      if (auto normalized = parts_.normalizer.apply(token.content)) {
        searched.content = std::move(*normalized);
        respelled_.emplace(token.id, searched.content);
      }
      normalized_added_.add(searched);
    } else {
      verbatim_added_.add(token);
    }
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  }
  if (parts_.spelling != TokenSpelling::kChain) std::call_once(bytes_found_, [this] { find_bytes(); });
}

void PipelineTokenizer::find_bytes() const {
  ChainProbe probe(parts_.decoder);
  bytes_.resize(static_cast<size_t>(parts_.tokens.size()));
  for (TokenId id = 0; id < parts_.tokens.size(); ++id) {
    const std::string* token = parts_.tokens.find(id);
    if (token == nullptr) continue;
    bytes_[static_cast<size_t>(id)] = bytes_of(spelling_of(id, *token), probe);
  }
  for (const TokenId id : parts_.silent) bytes_[static_cast<size_t>(id)].clear();
  if (parts_.unknown != kNoToken) bytes_[static_cast<size_t>(parts_.unknown)] = parts_.unknown_text;
}

// What a token decodes from: an added token whose spelling is normalised is decoded so.
const std::string& PipelineTokenizer::spelling_of(TokenId id, const std::string& token) const {
  const auto respelled = respelled_.find(id);
  return respelled == respelled_.end() ? token : respelled->second;
}

std::string PipelineTokenizer::bytes_of(const std::string& token, ChainProbe& probe) const {
  if (parts_.spelling == TokenSpelling::kVerbatim) return token;
  if (parts_.spelling == TokenSpelling::kByteAlphabet) {
    std::string bytes;
    return ByteAlphabet::get().to_bytes(token, bytes) ? bytes : token;
  }
  if (const auto byte = parts_.decodes_bytes ? byte_of_token(token) : std::nullopt) {
    return std::string(1, static_cast<char>(*byte));
  }
  return probe.between(token);
}

// Asked before each piece whether the encoding goes on.
class PipelineTokenizer::Progress {
 public:
  explicit Progress(const EncodeLimits& limits) : limits_(limits) {}

  bool ends(size_t num_ids, size_t piece_bytes) {
    constexpr size_t kBytesBetweenQuestions = 4096;
    if (num_ids > limits_.max_ids) return true;
    unasked_ += piece_bytes;
    if (unasked_ >= kBytesBetweenQuestions) {
      unasked_ = 0;
      over_ = over_ || (limits_.is_over && limits_.is_over());
    }
    return over_;
  }
  bool over() const { return over_; }

 private:
  const EncodeLimits& limits_;
  size_t unasked_ = 0;
  bool over_ = false;
};

std::vector<TokenId> PipelineTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const EncodeLimits none;
  Progress progress(none);
  if (is_valid_utf8(text)) return encode_text(text, {{0, text.size()}}, add_special_tokens, progress);
  const JoinedText joined = replace_ill_formed(text, {{0, text.size()}});
  return encode_text(joined.text, joined.trusted, add_special_tokens, progress);
}

std::vector<TokenId> PipelineTokenizer::encode(std::span<const TextPiece> pieces, bool add_special_tokens) const {
  return *encode_within(pieces, add_special_tokens, {});
}

Result<std::vector<TokenId>> PipelineTokenizer::encode_within(std::span<const TextPiece> pieces,
                                                              bool add_special_tokens,
                                                              const EncodeLimits& limits) const {
  size_t bytes = 0;
  for (const TextPiece& piece : pieces) bytes += piece.text.size();
  std::string text;
  text.reserve(bytes);
  for (const TextPiece& piece : pieces) text.append(piece.text);
  JoinedText joined{.text = std::move(text), .trusted = ranges_of(pieces)};
  if (!is_valid_utf8(joined.text)) joined = replace_ill_formed(joined.text, joined.trusted);
  Progress progress(limits);
  std::vector<TokenId> ids = encode_text(joined.text, joined.trusted, add_special_tokens, progress);
  if (progress.over()) return Status(StatusCode::kDeadlineExceeded, "a text took too long to be tokenized");
  return ids;
}

SpecialFrame PipelineTokenizer::frame(bool of_pair) const {
  if (of_pair && parts_.pair) return *parts_.pair;
  return {.before = parts_.prefix, .between = {}, .after = parts_.suffix};
}

std::vector<TokenId> PipelineTokenizer::encode_text(std::string_view text, const TrustedRanges& trusted,
                                                    bool add_special_tokens, Progress& progress) const {
  std::vector<TokenId> ids;
  if (add_special_tokens) ids = parts_.prefix;
  std::vector<AddedSpan> spans;
  verbatim_added_.split(text, 0, text.size(), trusted, spans);
  auto range = trusted.begin();  // the first that ends behind the span's beginning
  for (const AddedSpan& span : spans) {
    if (progress.ends(ids.size(), 1)) return ids;
    while (range != trusted.end() && range->second <= span.begin) ++range;
    if (span.id != kNoToken) {
      ids.push_back(span.id);
      continue;
    }
    StretchPlace place{span.begin == 0};
    const auto normalized = parts_.normalizer.apply(text.substr(span.begin, span.end - span.begin), place);
    if (normalized) {
      // Bytes no longer tell where they came from: the stretch is trusted when all of it was.
      const bool all_trusted = range != trusted.end() && range->first <= span.begin && span.end <= range->second;
      const TrustedRanges ranges = all_trusted ? TrustedRanges{{0, normalized->size()}} : TrustedRanges{};
      encode_stretch(*normalized, 0, normalized->size(), ranges, place.at_start, progress, ids);
    } else {
      encode_stretch(text, span.begin, span.end, trusted, span.begin == 0, progress, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  return ids;
}

void PipelineTokenizer::encode_stretch(std::string_view text, size_t begin, size_t end, const TrustedRanges& trusted,
                                       bool at_start, Progress& progress, std::vector<TokenId>& ids) const {
  std::vector<AddedSpan> spans;
  normalized_added_.split(text, begin, end, trusted, spans);
  for (const AddedSpan& span : spans) {
    if (span.id != kNoToken) {
      ids.push_back(span.id);
      continue;
    }
    const PreTokenized cut =
        parts_.pre_tokenizer.split(text.substr(span.begin, span.end - span.begin), at_start && span.begin == begin);
    for (const std::string_view piece : cut.pieces) {
      if (progress.ends(ids.size(), piece.size())) return;
      parts_.model->encode(piece, ids);
    }
  }
}

size_t PipelineTokenizer::most_bytes_per_token() const {
  const auto swallows = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
  const size_t shrinking = parts_.normalizer.most_shrinking();
  if (shrinking == 0 || parts_.pre_tokenizer.drops() || !parts_.model->keeps_all() ||
      std::ranges::any_of(parts_.added, swallows)) {
    return 0;
  }
  std::call_once(bytes_found_, [this] { find_bytes(); });
  size_t most = 0;
  for (const std::string& bytes : bytes_) most = std::max(most, bytes.size());
  for (const AddedToken& token : parts_.added) most = std::max(most, token.content.size());
  return most * shrinking;
}

class PipelineTokenizer::ChainStream final : public DecodeStream {
 public:
  ChainStream(const PipelineTokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens), stream_(tokenizer.parts_.decoder) {}

  void push(TokenId id, std::string& text) override {
    const std::string* token = tokenizer_.parts_.tokens.find(id);
    if (token == nullptr || (skip_special_tokens_ && tokenizer_.is_special(id))) return;
    const auto& silent = tokenizer_.parts_.silent;
    if (std::binary_search(silent.begin(), silent.end(), id)) return;
    stream_.push(id == tokenizer_.parts_.unknown ? tokenizer_.parts_.unknown_text : tokenizer_.spelling_of(id, *token),
                 text);
  }
  void finish(std::string& text) override { stream_.finish(text); }

 private:
  const PipelineTokenizer& tokenizer_;
  bool skip_special_tokens_;
  DecoderChain::Stream stream_;
};

std::unique_ptr<DecodeStream> PipelineTokenizer::start_decoding(bool skip_special_tokens) const {
  if (parts_.spelling != TokenSpelling::kChain) return nullptr;
  return std::make_unique<ChainStream>(*this, skip_special_tokens);
}

std::string PipelineTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  if (parts_.spelling == TokenSpelling::kChain) {
    std::string decoded;
    ChainStream stream(*this, skip_special_tokens);
    for (const TokenId id : ids) stream.push(id, decoded);
    stream.finish(decoded);
    return decoded;
  }
  std::string bytes;
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special_tokens && is_special(id))) continue;
    bytes.append(bytes_[static_cast<size_t>(id)]);
  }
  std::string text;
  text.reserve(bytes.size());
  append_lossy_utf8(bytes, text);
  return text;
}

std::string PipelineTokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  std::call_once(bytes_found_, [this] { find_bytes(); });
  return bytes_[static_cast<size_t>(id)];
}

std::optional<std::string> PipelineTokenizer::id_to_token(TokenId id) const {
  const std::string* token = parts_.tokens.find(id);
  if (token == nullptr) return std::nullopt;
  return *token;
}

std::optional<TokenId> PipelineTokenizer::token_to_id(std::string_view token) const {
  return parts_.tokens.find(token);
}

bool PipelineTokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

int64_t PipelineTokenizer::vocab_size() const {
  return parts_.tokens.size();
}

std::string PipelineTokenizer::description() const {
  return fmt::format("{}, {} tokens", parts_.kind, parts_.tokens.count());
}

}  // namespace quire::text
