// Pre-tokenizer steps that rewrite text, and the rarer ways to cut it.
#include <algorithm>
#include <utility>

#include "text/pretokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

class ByteAlphabetStep final : public PreTokenizerStep {
 public:
  bool rewrites() const override { return true; }
  void split(std::string_view piece, bool, PreTokenized& out) const override {
    std::string& text = out.owned.emplace_back();
    text.reserve(2 * piece.size());
    for (const char byte : piece) {
      append_code_point(ByteAlphabet::get().character(static_cast<unsigned char>(byte)), text);
    }
    out.pieces.push_back(text);
  }
};

class FixedLengthStep final : public PreTokenizerStep {
 public:
  explicit FixedLengthStep(size_t length) : length_(length) {}
  void split(std::string_view piece, bool, PreTokenized& out) const override {
    size_t begin = 0;
    size_t count = 0;
    for (size_t i = 0; i < piece.size();) {
      i += decode_code_point(piece.data() + i).length;
      if (++count < length_ && i < piece.size()) continue;
      out.pieces.push_back(piece.substr(begin, i - begin));
      begin = i;
      count = 0;
    }
  }

 private:
  size_t length_;
};

class MetaspaceStep final : public PreTokenizerStep {
 public:
  MetaspaceStep(std::string replacement, PrependScheme prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend) {
    if (split) {
      cut_ = make_split_step(make_literal_pattern(replacement_), SplitBehavior::kMergedWithNext, false);
    }
  }
  bool rewrites() const override { return true; }
  void split(std::string_view piece, bool at_start, PreTokenized& out) const override {
    const bool may_prepend = prepend_ == PrependScheme::kAlways || (prepend_ == PrependScheme::kFirst && at_start);
    const bool prepends = may_prepend && !piece.starts_with(replacement_) && !piece.starts_with(' ');
    if (prepends || piece.find(' ') != std::string_view::npos) {
      std::string& text = out.owned.emplace_back();
      text.reserve(piece.size() + piece.size() / 2 + replacement_.size());
      if (prepends) text.append(replacement_);
      for (const char byte : piece) {
        if (byte == ' ') {
          text.append(replacement_);
        } else {
          text.push_back(byte);
        }
      }
      piece = text;
    }
    if (cut_ != nullptr) {
      cut_->split(piece, at_start, out);
    } else {
      out.pieces.push_back(piece);
    }
  }

 private:
  std::string replacement_;
  PrependScheme prepend_;
  std::unique_ptr<PreTokenizerStep> cut_;
};

class KeysStep final : public PreTokenizerStep {
 public:
  explicit KeysStep(std::shared_ptr<const ByteTrie> keys) : keys_(std::move(keys)) {}
  void split(std::string_view piece, bool, PreTokenized& out) const override {
    size_t done = 0;
    for (size_t i = 0; i < piece.size();) {
      const size_t length = keys_->longest(piece.substr(i)).length;
      if (length == 0) {
        i += decode_code_point(piece.data() + i).length;
        continue;
      }
      if (done < i) out.pieces.push_back(piece.substr(done, i - done));
      out.pieces.push_back(piece.substr(i, length));
      i += length;
      done = i;
    }
    if (done < piece.size()) out.pieces.push_back(piece.substr(done));
  }

 private:
  std::shared_ptr<const ByteTrie> keys_;
};

// The scripts of Unicode 14 but for Hiragana and Katakana, by the names that PCRE2 has for them.
constexpr std::string_view kScripts =
    "Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki "
    "Bopomofo "
    "Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian "
    "Common "
    "Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs "
    "Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Hangul "
    "Hanifi_Rohingya Hanunoo Hatran Hebrew Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian "
    "Javanese Kaithi Kannada Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Lao Latin Lepcha Limbu "
    "Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi "
    "Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani "
    "Myanmar Nabataean Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Old_Hungarian "
    "Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya "
    "Osage "
    "Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra "
    "Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac Tagalog "
    "Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Toto "
    "Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square";

// One alternative a script: a character of it and all that go on, spaces and unassigned characters among them.
std::string scripts_regex() {
  const auto run = [](std::string_view set) {
    return fmt::format("[{0}](?:[{0}]|{1})*", set, R"([\x{20}\p{sc:Unknown}])");
  };
  // The prolonged sound mark is Common, but goes with the kana.
  std::string regex = run(R"(\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}\x{30fc})");
  for (size_t begin = 0; begin < kScripts.size();) {
    const size_t end = std::min(kScripts.find(' ', begin), kScripts.size());
    const std::string_view name = kScripts.substr(begin, end - begin);
    if (name == "Common") {
      regex.append(R"(|(?![\x{20}\x{30fc}])\p{sc:Common}(?:(?!\x{30fc})[\p{sc:Common}\x{20}\p{sc:Unknown}])*)");
    } else {
      regex.append("|").append(run(fmt::format("\\p{{sc:{}}}", name)));
    }
    begin = end + 1;
  }
  return regex;
}

}  // namespace

std::unique_ptr<PreTokenizerStep> make_byte_alphabet_step() {
  return std::make_unique<ByteAlphabetStep>();
}

std::unique_ptr<PreTokenizerStep> make_fixed_length_step(size_t length) {
  return std::make_unique<FixedLengthStep>(length);
}

std::unique_ptr<PreTokenizerStep> make_metaspace_step(std::string replacement, PrependScheme prepend, bool split) {
  return std::make_unique<MetaspaceStep>(std::move(replacement), prepend, split);
}

std::unique_ptr<PreTokenizerStep> make_keys_step(std::shared_ptr<const ByteTrie> keys) {
  return std::make_unique<KeysStep>(std::move(keys));
}

Result<std::unique_ptr<PreTokenizerStep>> make_scripts_step() {
  auto pattern = make_pcre2_pattern(scripts_regex());
  if (!pattern.ok()) return pattern.status();
  // What no run begins with (spaces at the beginning) is dropped.
  return make_split_step(std::move(pattern).value(), SplitBehavior::kRemoved, /*invert=*/true);
}

}  // namespace quire::text
