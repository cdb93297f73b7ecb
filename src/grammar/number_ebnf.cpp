#include "grammar/number_ebnf.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr int kMostDigits = 18;            // of what is computed with here, an int64
constexpr int kExactDigits = 15;           // that a double keeps apart
constexpr int kUsualPlaces = 6;            // behind the point
constexpr int64_t kMostMultiples = 10000;  // that are written one by one
constexpr int64_t kMostRemainders = 128;

int64_t power_of_ten(int exponent) {
  int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

// digits * 10^exponent
struct Decimal {
  int64_t digits = 0;
  int exponent = 0;
};

// The shortest decimal that is this double, or the integer.
Decimal decimal_of(const json::value& value) {
  Decimal out;
  if (value.is_int64()) {
    out.digits = value.get_int64();
  } else {
    std::string digits = fmt::format("{}", value.to_number<double>());
    int exponent = 0;
    if (const size_t at = digits.find('e'); at != std::string::npos) {
      exponent = std::atoi(digits.c_str() + at + 1);
      digits.resize(at);
    }
    if (const size_t point = digits.find('.'); point != std::string::npos) {
      exponent -= static_cast<int>(digits.size() - point - 1);
      digits.erase(point, 1);
    }
    out.digits = std::strtoll(digits.c_str(), nullptr, 10);
    out.exponent = exponent;
  }
  while (out.digits != 0 && out.digits % 10 == 0) {
    out.digits /= 10;
    ++out.exponent;
  }
  if (out.digits == 0) out.exponent = 0;
  return out;
}

int digits_before_point(const Decimal& decimal) {
  int count = decimal.exponent;
  for (int64_t rest = decimal.digits; rest != 0; rest /= 10) ++count;
  return std::max(count, 1);
}

// In units of 10^-places, rounded towards `up`.
int64_t in_units(const Decimal& decimal, int places, bool up) {
  const int shift = decimal.exponent + places;
  if (shift >= 0) return decimal.digits * power_of_ten(shift);
  if (-shift > kMostDigits) return decimal.digits == 0 ? 0 : (decimal.digits > 0 ? (up ? 1 : 0) : (up ? 0 : -1));
  const int64_t unit = power_of_ten(-shift);
  const int64_t cut = decimal.digits / unit;
  if (cut * unit == decimal.digits) return cut;
  if (up) return decimal.digits > 0 ? cut + 1 : cut;
  return decimal.digits > 0 ? cut : cut - 1;
}

// Numbers from low to high, written with the same count of digits, `whole` of them before the point.
class DigitRange {
 public:
  DigitRange(std::string low, std::string high, size_t whole)
      : low_(std::move(low)), high_(std::move(high)), whole_(whole) {}

  std::string ebnf() const { return rest(0, true, true); }

 private:
  static std::string digit(char first, char last) {
    if (first == last) return fmt::format("\"{}\"", first);
    return fmt::format("[{}-{}]", first, last);
  }

  std::string any_rest(size_t at) const {
    std::string out;
    if (at < whole_) out = fmt::format("[0-9]{{{}}}", whole_ - at);
    const size_t places = low_.size() - std::max(at, whole_);
    if (places == 0) return out.empty() ? "\"\"" : out;
    if (!out.empty()) out += ' ';
    return out + (at <= whole_ ? fmt::format("(\".\" [0-9]{{1,{}}})?", places) : fmt::format("[0-9]{{0,{}}}", places));
  }

  // Digits from `at` on, where those before are the same as of the low end, of the high end, of both or between them.
  std::string rest(size_t at, bool on_low, bool on_high) const {
    if (at == low_.size()) return "\"\"";
    if (!on_low && !on_high) return any_rest(at);
    std::string out = "(";
    // Zeros behind the point need not be written.
    if (at >= whole_ && (!on_low || low_.find_first_not_of('0', at) == std::string::npos)) out += "\"\" | ";
    const std::string point = at == whole_ ? "\".\" " : "";
    char first = on_low ? low_[at] : '0';
    char last = on_high ? high_[at] : '9';
    if (on_low && on_high && first == last) {
      return out + point + digit(first, last) + ' ' + rest(at + 1, true, true) + ')';
    }
    if (on_low) {
      out += point + digit(first, first) + ' ' + rest(at + 1, true, false) + " | ";
      ++first;
    }
    if (on_high) {
      out += point + digit(last, last) + ' ' + rest(at + 1, false, true) + " | ";
      --last;
    }
    if (first <= last) {
      out += point + digit(first, last) + ' ' + any_rest(at + 1);
    } else {
      out.resize(out.size() - 3);
    }
    return out + ')';
  }

  std::string low_;
  std::string high_;
  size_t whole_;
};

// From 0 <= low to high, in units of 10^-places, each behind `sign`.
void add_ranges(int64_t low, int64_t high, int places, const std::string& sign, std::vector<std::string>& out) {
  for (int whole = 1; whole + places <= kMostDigits; ++whole) {
    const int64_t least = whole == 1 ? 0 : power_of_ten(whole - 1 + places);
    const int64_t most = power_of_ten(whole + places) - 1;
    const int64_t from = std::max(low, least);
    const int64_t to = std::min(high, most);
    if (from > to) continue;
    if (whole > 1 && from == least && to == most) {
      std::string all = sign + fmt::format("[1-9] [0-9]{{{}}}", whole - 1);
      if (places > 0) all += fmt::format(" (\".\" [0-9]{{1,{}}})?", places);
      out.push_back(std::move(all));
      continue;
    }
    const int width = whole + places;
    out.push_back(sign + DigitRange(fmt::format("{:0{}}", from, width), fmt::format("{:0{}}", to, width),
                                    static_cast<size_t>(whole))
                             .ebnf());
  }
}

std::string either(const std::vector<std::string>& alternatives) {
  return fmt::format("({})", fmt::join(alternatives, " | "));
}

// Multiples of any size: which remainder the digits so far leave, by how many digits there are.
std::string multiples(int64_t of, const std::string& name, std::string& rules) {
  std::string zeros;
  for (; of % 10 == 0; of /= 10) zeros += '0';
  const int most_digits = kExactDigits - static_cast<int>(zeros.size());
  const auto state = [&](int digits, int64_t remainder) { return fmt::format("{}m{}x{}", name, digits, remainder); };
  // Which remainders can still become 0, from the last digit back: no way is offered that leads nowhere.
  std::vector<bool> alive(static_cast<size_t>(of), false);
  for (int digits = most_digits; digits >= 1; --digits) {
    std::vector<bool> alive_here(static_cast<size_t>(of), false);
    for (int64_t remainder = 0; remainder < of; ++remainder) {
      std::vector<std::string> ways;
      if (remainder == 0) ways.push_back(fmt::format("\"{}\"", zeros));
      for (int64_t digit = 0; digit <= 9 && digits < most_digits; ++digit) {
        const int64_t next = (remainder * 10 + digit) % of;
        if (alive[static_cast<size_t>(next)]) ways.push_back(fmt::format("\"{}\" {}", digit, state(digits + 1, next)));
      }
      if (ways.empty()) continue;
      alive_here[static_cast<size_t>(remainder)] = true;
      rules += fmt::format("{} ::= {}\n", state(digits, remainder), fmt::join(ways, " | "));
    }
    alive = std::move(alive_here);
  }
  std::vector<std::string> first;
  for (int64_t digit = 1; digit <= 9; ++digit) {
    if (alive[static_cast<size_t>(digit % of)]) first.push_back(fmt::format("\"{}\" {}", digit, state(1, digit % of)));
  }
  return fmt::format("(\"0\" | \"-\"? {})", either(first));
}

Result<std::string> multiples_within(int64_t low, int64_t high, int64_t of) {
  if (high / of - low / of > kMostMultiples) {
    return invalid_argument("between minimum and maximum lie more than {} multiples of {}", kMostMultiples, of);
  }
  std::vector<std::string> all;
  int64_t first = low / of * of;
  if (first < low) first += of;
  for (int64_t value = first; value <= high; value += of) all.push_back(fmt::format("\"{}\"", value));
  if (all.empty()) return invalid_argument("no multiple of {} is within its bounds", of);
  return either(all);
}

}  // namespace

Result<std::string> number_ebnf(const NumberBounds& bounds, bool integer, std::optional<int64_t> multiple_of,
                                const std::string& name, std::string& rules) {
  if (!bounds.any()) {
    if (!multiple_of) {
      const std::string whole = integer ? "(\"0\" | \"-\"? [1-9] [0-9]{0,17})" : "(\"-\"? (\"0\" | [1-9] [0-9]{0,17}))";
      return integer ? whole : "(" + whole + " (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,2})?)";
    }
    int64_t odd = *multiple_of;
    while (odd % 10 == 0) odd /= 10;
    if (odd <= kMostRemainders && *multiple_of <= power_of_ten(12)) return multiples(*multiple_of, name, rules);
    return invalid_argument("multipleOf {} needs a minimum and a maximum beside it", *multiple_of);
  }
  const bool has_low = bounds.minimum != nullptr || bounds.exclusive_minimum != nullptr;
  const bool has_high = bounds.maximum != nullptr || bounds.exclusive_maximum != nullptr;
  int places = 0;
  int whole = 1;
  for (const json::value* bound :
       {bounds.minimum, bounds.maximum, bounds.exclusive_minimum, bounds.exclusive_maximum}) {
    if (bound == nullptr) continue;
    const Decimal decimal = decimal_of(*bound);
    places = std::max(places, -decimal.exponent);
    whole = std::max(whole, digits_before_point(decimal));
  }
  if (integer) {
    places = 0;
  } else {
    const bool exclusive = bounds.exclusive_minimum != nullptr || bounds.exclusive_maximum != nullptr;
    const int most = exclusive ? kExactDigits : kExactDigits + 1;
    // Between bounds that are excluded there may be nothing without one place more.
    if (exclusive && places + whole < most) ++places;
    places = std::max(places, std::min(kUsualPlaces, most - whole));
    if (places + whole > most) return invalid_argument("its bounds have more than {} digits", most);
  }
  int64_t low = -(power_of_ten(kMostDigits) - 1);
  int64_t high = power_of_ten(kMostDigits) - 1;
  if (bounds.minimum != nullptr) low = std::max(low, in_units(decimal_of(*bounds.minimum), places, true));
  if (bounds.maximum != nullptr) high = std::min(high, in_units(decimal_of(*bounds.maximum), places, false));
  if (bounds.exclusive_minimum != nullptr) {
    low = std::max(low, in_units(decimal_of(*bounds.exclusive_minimum), places, false) + 1);
  }
  if (bounds.exclusive_maximum != nullptr) {
    high = std::min(high, in_units(decimal_of(*bounds.exclusive_maximum), places, true) - 1);
  }
  if (low > high) return invalid_argument("no number is within its bounds");
  if (multiple_of) {
    if (!has_low || !has_high) return invalid_argument("multipleOf beside one bound needs the other, too");
    return multiples_within(low, high, *multiple_of);
  }
  std::vector<std::string> ways;
  if (low < 0) add_ranges(std::max<int64_t>(1, -high), -low, places, "\"-\" ", ways);
  if (high >= 0) add_ranges(std::max<int64_t>(0, low), high, places, "", ways);
  return either(ways);
}

}  // namespace quire::grammar
