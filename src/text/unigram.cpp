#include "text/unigram.h"

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace quire::text {
namespace {

constexpr double kGreatestScore = 1e30;

size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

// Puts tokens out from left to right and holds back unknown characters until their run ends.
class UnigramModel::Emitter {
 public:
  Emitter(const UnigramModel& model, std::string_view text, std::vector<TokenId>& out)
      : model_(model), text_(text), out_(out) {}

  void put(size_t begin, size_t end, TokenId id) {
    if (id == kNoToken || id == model_.options_.unk) {
      if (unknown_end_ != begin || unknown_begin_ == unknown_end_) {
        finish();
        unknown_begin_ = begin;
      }
      unknown_end_ = end;
      return;
    }
    finish();
    out_.push_back(id);
  }

  void finish() {
    if (unknown_begin_ == unknown_end_) return;
    const std::string_view run = text_.substr(unknown_begin_, unknown_end_ - unknown_begin_);
    unknown_begin_ = unknown_end_ = 0;
    // Hugging Face looks the run up again: characters may be unknown and their row a token.
    if (const int32_t index = model_.trie_.find(run); index != ByteTrie::kNoValue) {
      out_.push_back(model_.ids_[static_cast<size_t>(index)]);
      return;
    }
    const auto& fallback = model_.fallback_tokens_;
    const bool falls_back = model_.options_.byte_fallback && std::all_of(run.begin(), run.end(), [&](char byte) {
                              return fallback[static_cast<unsigned char>(byte)] != kNoToken;
                            });
    if (falls_back) {
      for (const char byte : run) out_.push_back(fallback[static_cast<unsigned char>(byte)]);
    } else if (model_.options_.unk) {
      out_.push_back(*model_.options_.unk);
    }
  }

 private:
  const UnigramModel& model_;
  std::string_view text_;
  std::vector<TokenId>& out_;
  size_t unknown_begin_ = 0, unknown_end_ = 0;
};

Result<std::unique_ptr<TokenModel>> UnigramModel::make(const TokenTable& tokens, std::span<const UnigramPiece> pieces,
                                                       const UnigramOptions& options) {
  std::unique_ptr<UnigramModel> model(new UnigramModel(options));
  if (options.unk && tokens.find(*options.unk) == nullptr) {
    return invalid_argument("unk_id {} is no id of {} tokens", *options.unk, tokens.size());
  }
  std::vector<ByteTrie::Entry> entries;
  entries.reserve(pieces.size());
  for (const UnigramPiece& piece : pieces) {
    const std::string* spelling = tokens.find(piece.id);
    QUIRE_CHECK(spelling != nullptr);
    if (!std::isfinite(piece.score) || std::abs(piece.score) > kGreatestScore) {
      return invalid_argument("vocab[{}]: token {:?} has the score {}; expected a finite number up to {:g}", piece.id,
                              *spelling, piece.score, kGreatestScore);
    }
    entries.push_back({*spelling, static_cast<int32_t>(model->ids_.size())});
    model->ids_.push_back(piece.id);
    model->scores_.push_back(piece.score);
  }
  model->trie_ = ByteTrie(std::move(entries));
  model->fallback_tokens_.fill(kNoToken);
  if (options.byte_fallback) {
    for (size_t byte = 0; byte < 256; ++byte) {
      model->fallback_tokens_[byte] = tokens.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
    }
  }
  return std::unique_ptr<TokenModel>(std::move(model));
}

bool UnigramModel::keeps_all() const {
  return options_.byte_fallback && std::ranges::find(fallback_tokens_, kNoToken) == fallback_tokens_.end();
}

void UnigramModel::offer(Node& target, double score, size_t begin, TokenId id) const {
  // Rounded before it is compared: ties go to the token that begins first.
  if (options_.float_sums) score = static_cast<double>(static_cast<float>(score));
  if (target.begin != UINT32_MAX && !(score > target.score)) return;
  target.score = score;
  target.begin = static_cast<uint32_t>(begin);
  target.id = id;
}

// A position that no token reaches across splits the problem: every way passes through it. The stretch up to it is put
// out and forgotten, but for the score, whose rounding the rest depends on.
void UnigramModel::encode(std::string_view text, std::vector<TokenId>& out) const {
  Emitter emitter(*this, text, out);
  std::vector<Node> best(1);
  std::vector<size_t> ends;
  size_t base = 0;   // where the stretch begins
  size_t reach = 0;  // how far the tokens of this stretch reach
  const auto flush = [&](size_t until) {
    ends.clear();
    for (size_t end = until - base; end > 0; end = best[end].begin) ends.push_back(end);
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      emitter.put(base + best[*end].begin, base + *end, best[*end].id);
    }
    best[0] = {best[until - base].score, 0, kNoToken};
    best.resize(1);
    base = until;
  };
  const auto node_at = [&](size_t position) -> Node& {
    if (position - base >= best.size()) best.resize(position - base + 1);
    return best[position - base];
  };
  for (size_t begin = 0; begin < text.size();) {
    if (reach == begin && begin > base) flush(begin);
    const double score = best[begin - base].score;
    const size_t length = character_length(text[begin]);
    bool whole_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size() && trie_.step(node, text[end]);) {
      ++end;
      const int32_t index = trie_.value(node);
      if (index == ByteTrie::kNoValue) continue;
      const auto piece = static_cast<size_t>(index);
      offer(node_at(end), scores_[piece] + score, begin - base, ids_[piece]);
      reach = std::max(reach, end);
      whole_character = whole_character || end - begin == length;
    }
    if (!whole_character) {
      offer(node_at(begin + length), options_.unk_score + score, begin - base, kNoToken);
      reach = std::max(reach, begin + length);
    }
    begin += length;
  }
  if (text.size() > base) flush(text.size());
  emitter.finish();
}

}  // namespace quire::text
