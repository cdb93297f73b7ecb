// Global functions: range, dict, namespace, cycler, joiner, and the two that transformers adds.
#include <algorithm>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

using In = Interpreter;
using Self = const Value&;
using Args = const Arguments&;

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

Value range(In& in, Self, Args a) {
  Bound bound(in, "range", a, {"start", "stop", "step"}, 1);
  auto made = std::make_shared<RangeObject>();
  made->start = bound.integer(0, 0);
  made->stop = bound.integer(1, 0);
  made->step = bound.integer(2, 1);
  if (!bound.ok()) return in.undefined();
  if (!bound.has(1)) made->stop = std::exchange(made->start, 0);
  if (made->step == 0) return in.fail("range() arg 3 must not be zero");
  const bool rising = made->step > 0;
  if (rising ? made->start < made->stop : made->start > made->stop) {
    const auto distance = rising ? static_cast<uint64_t>(made->stop) - static_cast<uint64_t>(made->start)
                                 : static_cast<uint64_t>(made->start) - static_cast<uint64_t>(made->stop);
    const uint64_t stride =
        rising ? static_cast<uint64_t>(made->step) : uint64_t{0} - static_cast<uint64_t>(made->step);
    const uint64_t count = (distance - 1) / stride + 1;
    if (count > static_cast<uint64_t>(kMaxRange)) {
      return in.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
    }
    made->size = static_cast<int64_t>(count);
  }
  return in.object(Kind::kRange, std::move(made));
}

// Pairs of an iterable, or a mapping, into `set`.
template <typename Set>
void each_pair(In& in, const Value& source, const Set& set) {
  if (source.is(Kind::kDict)) {
    for (const auto& [key, value] : source.dict().entries) set(key, value);
    return;
  }
  for (const Value& pair : in.items(source)) {
    const Values parts = in.items(pair);
    if (!in.ok()) return;
    if (parts.size() != 2) {
      in.fail("dictionary update sequence element has length {}; 2 is required", parts.size());
      return;
    }
    if (!hashable(parts[0])) {
      in.fail("unhashable type: '{}'", type_name(parts[0]));
      return;
    }
    set(parts[0], parts[1]);
  }
}

Value dict(In& in, Self, Args a) {
  if (a.positional.size() > 1) return in.fail("dict expected at most 1 argument, got {}", a.positional.size());
  auto made = std::make_shared<DictObject>();
  if (!a.positional.empty())
    each_pair(in, a.positional[0], [&](const Value& key, const Value& value) { made->set(key, value); });
  for (const auto& [name, value, trusted] : a.keyword) made->set(in.string(name, trusted), value);
  return in.ok() ? in.dict(std::move(made)) : in.undefined();
}

Value make_namespace(In& in, Self, Args a) {
  if (a.positional.size() > 1) return in.fail("namespace expected at most 1 argument, got {}", a.positional.size());
  Value made = in.make_namespace();
  if (!in.ok()) return made;
  auto& space = made.object<NamespaceObject>();
  const auto set = [&](const std::string& name, const Value& value) {
    if (space.attributes.insert_or_assign(name, value).second) space.order.push_back(name);
  };
  if (!a.positional.empty()) {
    each_pair(in, a.positional[0], [&](const Value& key, const Value& value) { set(in.str(key).bytes(), value); });
  }
  for (const auto& [name, value, trusted] : a.keyword) set(name, value);
  return made;
}

Value cycler(In& in, Self, Args a) {
  if (a.positional.empty()) return in.fail("at least one item has to be provided");
  auto made = std::make_shared<CyclerObject>();
  made->items = a.positional;
  for (const Value& item : made->items) made->note_depth_of(item);
  return in.object(Kind::kCycler, std::move(made));
}

Value joiner(In& in, Self, Args a) {
  Bound bound(in, "joiner", a, {"sep"});
  auto made = std::make_shared<JoinerObject>();
  made->separator = bound.has(0) ? bound[0] : in.string(", ", true);
  made->note_depth_of(made->separator);
  return in.object(Kind::kJoiner, std::move(made));
}

Value raise_exception(In& in, Self, Args a) {
  Bound bound(in, "raise_exception", a, {"message"}, 1);
  return bound.ok() ? in.fail("{}", in.str(bound[0]).view()) : in.undefined();
}

Value strftime_now(In& in, Self, Args a) {
  Bound bound(in, "strftime_now", a, {"format"}, 1);
  if (!bound.ok()) return in.undefined();
  if (!bound[0].is_string()) return in.fail("strftime() argument 1 must be str, not {}", type_name(bound[0]));
  const std::string& format = bound[0].text().bytes();
  if (format.size() > 1000) return in.fail("strftime_now: the format is longer than 1000 bytes");
  if (format.empty()) return in.string(Text());
  std::string out(format.size() * 40 + 64, '\0');
  const size_t written = std::strftime(out.data(), out.size(), format.c_str(), &in.local_time());
  out.resize(written);
  return in.string(out, bound[0].text().fully_trusted());
}

constexpr auto kFunctions = std::to_array<BuiltinEntry>({
    {"cycler", cycler},
    {"dict", dict},
    {"joiner", joiner},
    {"lipsum", [](In& in, Self, Args) { return in.fail("lipsum() is not available in chat templates"); }},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
});

}  // namespace

const BuiltinEntry* find_function(std::string_view name) {
  return find_in(kFunctions, name);
}

}  // namespace quire::text::jinja
