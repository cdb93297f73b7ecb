// Filters over lists and mappings. Jinja's generators are computed at once here, and still give each item once.
#include <algorithm>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

using In = Interpreter;
using Self = const Value&;
using Args = const Arguments&;

// Strings compare without case unless asked otherwise.
Value ignore_case(In& in, const Value& value) {
  return value.is_string() ? find_string_method("lower")->function(in, value, {}) : value;
}

Value length(In& in, Self s, Args) {
  const auto count = in.length(s);
  return count ? Value::integer(*count) : in.fail("object of type '{}' has no len()", type_name(s));
}

Value first(In& in, Self s, Args) {
  if (!in.iterable(s)) return in.fail("'{}' object is not iterable", type_name(s));
  Iteration iteration(s);
  Value item;
  return iteration.next(in, item) ? item : in.undefined("No first item, sequence was empty.");
}

Value last(In& in, Self s, Args) {
  if (s.is(Kind::kIterator) || s.is_none() || s.is_number())
    return in.fail("'{}' object is not reversible", type_name(s));
  if (s.is_string())
    return s.string().length > 0 ? in.item(s, Value::integer(-1)) : in.undefined("No last item, sequence was empty.");
  const Values items = in.items(s);
  return items.empty() ? in.undefined("No last item, sequence was empty.") : items.back();
}

Value list(In& in, Self s, Args) {
  return in.list(in.items(s));
}

Value reverse(In& in, Self s, Args) {
  if (s.is_string()) return in.slice(s, Value::none(), Value::none(), Value::integer(-1));
  Values items = in.items(s);
  std::reverse(items.begin(), items.end());
  return in.iterator(std::move(items), "list_reverseiterator");
}

Value join(In& in, Self s, Args a) {
  Bound bound(in, "join", a, {"d", "attribute"});
  if (!bound.ok()) return in.undefined();
  const Text separator = bound.has(0) ? in.str(bound[0]) : Text();
  Text result;
  bool first_item = true;
  for (const Value& item : in.items(s)) {
    const Value part = bound.absent(1) ? item : in.attribute_path(item, bound[1], Value::none());
    const Text text = in.str(part);
    if (!in.grow(result.size(), separator.size() + text.size())) return in.undefined();
    if (!std::exchange(first_item, false)) result.append(separator);
    result.append(text);
  }
  return in.string(std::move(result));
}

Value items(In& in, Self s, Args) {
  if (s.is_undefined()) return in.iterator({});
  if (!s.is(Kind::kDict)) return in.fail("Can only get item pairs from a mapping.");
  return in.iterator(in.items(in.dict_view(s, DictViewObject::Part::kItems)));
}

Value dictsort(In& in, Self s, Args a) {
  Bound bound(in, "dictsort", a, {"case_sensitive", "by", "reverse"});
  if (!bound.ok()) return in.undefined();
  if (!s.is(Kind::kDict)) return in.fail("'{}' object has no attribute 'items'", type_name(s));
  size_t position = 0;
  if (bound.has(1)) {
    const std::string by = in.str(bound[1]).bytes();
    if (by != "key" && by != "value") return in.fail("You can only sort by either \"key\" or \"value\"");
    position = by == "value" ? 1 : 0;
  }
  const bool case_sensitive = bound.truth(0, false);
  return in.list(in.sorted(
      in.items(in.dict_view(s, DictViewObject::Part::kItems)),
      [&](const Value& pair) {
        const Value& key = pair.items()[position];
        return case_sensitive ? key : ignore_case(in, key);
      },
      bound.truth(2, false)));
}

Value sort(In& in, Self s, Args a) {
  Bound bound(in, "sort", a, {"reverse", "case_sensitive", "attribute"});
  if (!bound.ok()) return in.undefined();
  const bool case_sensitive = bound.truth(1, false);
  // "a,b": by a, then by b.
  Values paths;
  if (bound.has(2) && bound[2].is_string()) {
    Arguments comma;
    comma.positional.push_back(in.string(",", true));
    paths = in.items(find_string_method("split")->function(in, bound[2], comma));
  } else {
    paths.push_back(bound.has(2) ? bound[2] : Value::none());
  }
  return in.list(in.sorted(
      in.items(s),
      [&](const Value& item) {
        Values keys;
        for (const Value& path : paths) {
          const Value key = in.attribute_path(item, path, Value::none());
          keys.push_back(case_sensitive ? key : ignore_case(in, key));
        }
        return in.list(std::move(keys));  // also of one, for equal keys are not asked which is less
      },
      bound.truth(0, false)));
}

Value unique(In& in, Self s, Args a) {
  Bound bound(in, "unique", a, {"case_sensitive", "attribute"});
  if (!bound.ok()) return in.undefined();
  DictObject seen;
  Values result;
  for (const Value& item : in.items(s)) {
    Value key = in.attribute_path(item, bound[1], Value::none());
    if (!bound.truth(0, false)) key = ignore_case(in, key);
    if (!in.ok()) return in.undefined();
    if (!hashable(key)) return in.fail("unhashable type: '{}'", type_name(key));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value::none());
    result.push_back(item);
  }
  return in.iterator(std::move(result));
}

Value extreme(In& in, Self s, Args a, bool largest) {
  Bound bound(in, largest ? "max" : "min", a, {"case_sensitive", "attribute"});
  if (!bound.ok()) return in.undefined();
  Value best = Value::missing();
  Value best_key;
  for (const Value& item : in.items(s)) {
    Value key = in.attribute_path(item, bound[1], Value::none());
    if (!bound.truth(0, false)) key = ignore_case(in, key);
    if (!in.ok()) return in.undefined();
    if (best.is_missing() || (largest ? in.less(best_key, key, ">") : in.less(key, best_key))) {
      best = item;
      best_key = std::move(key);
    }
  }
  return best.is_missing() ? in.undefined("No aggregated item, sequence was empty.") : best;
}

Value sum(In& in, Self s, Args a) {
  Bound bound(in, "sum", a, {"attribute", "start"});
  if (!bound.ok()) return in.undefined();
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) return in.fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : in.items(s)) {
    if (!in.ok()) break;
    total = in.arithmetic(Operator::kAdd, total, in.attribute_path(item, bound[0], Value::none()));
  }
  return total;
}

Value groupby(In& in, Self s, Args a) {
  Bound bound(in, "groupby", a, {"attribute", "default", "case_sensitive"}, 1);
  if (!bound.ok()) return in.undefined();
  const bool case_sensitive = bound.truth(2, false);
  const Value otherwise = bound.absent(1) ? Value::none() : bound[1];
  const auto key_of = [&](const Value& item) {
    const Value key = in.attribute_path(item, bound[0], otherwise);
    return case_sensitive ? key : ignore_case(in, key);
  };
  Values groups;
  Values members;
  Value group_key;
  const auto finish = [&] {
    if (members.empty()) return;
    const Value grouper = in.attribute_path(members[0], bound[0], otherwise);
    Value group = in.tuple({grouper, in.list(std::exchange(members, {}))});
    if (in.ok()) group.object<SequenceObject>().is_group = true;
    groups.push_back(std::move(group));
  };
  for (const Value& item : in.sorted(in.items(s), key_of, false)) {
    Value key = key_of(item);
    if (!in.ok()) return in.undefined();
    if (!members.empty() && !in.equal(key, group_key)) finish();
    group_key = std::move(key);
    members.push_back(item);
  }
  finish();
  return in.list(std::move(groups));
}

Value batch(In& in, Self s, Args a) {
  Bound bound(in, "batch", a, {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 1);
  if (!bound.ok()) return in.undefined();
  Values rows;
  Values row;
  for (const Value& item : in.items(s)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(in.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    while (!bound.absent(1) && static_cast<int64_t>(row.size()) < size && in.step() &&
           in.grow(row.size() * sizeof(Value), sizeof(Value))) {
      row.push_back(bound[1]);
    }
    rows.push_back(in.list(std::move(row)));
  }
  return in.iterator(std::move(rows));
}

Value slice(In& in, Self s, Args a) {
  Bound bound(in, "slice", a, {"slices", "fill_with"}, 1);
  const int64_t slices = bound.integer(0, 1);
  if (!bound.ok()) return in.undefined();
  if (slices == 0) return in.fail("integer division or modulo by zero");
  const Values all = in.items(s);
  const auto count = static_cast<int64_t>(all.size());
  Values result;
  int64_t begin = 0;
  for (int64_t i = 0; i < slices && in.step(); ++i) {
    const bool extra = i < count % slices;
    const int64_t end = begin + count / slices + (extra ? 1 : 0);
    Values part(all.begin() + begin, all.begin() + end);
    if (!bound.absent(1) && !extra) part.push_back(bound[1]);
    result.push_back(in.list(std::move(part)));
    begin = end;
  }
  return in.iterator(std::move(result));
}

Value map(In& in, Self s, Args a) {
  Values result;
  if (!in.truth(s) && !s.is(Kind::kIterator)) return in.iterator({});
  if (a.positional.empty()) {
    Bound bound(in, "map", a, {"attribute", "default"}, 1);
    if (!bound.ok()) return in.undefined();
    const Value otherwise = bound.has(1) ? bound[1] : Value::none();
    for (const Value& item : in.items(s)) result.push_back(in.attribute_path(item, bound[0], otherwise));
    return in.iterator(std::move(result));
  }
  const std::string name = in.str(a.positional[0]).bytes();
  const BuiltinEntry* filter = find_filter(name);
  if (filter == nullptr) return in.fail("No filter named '{}'.", clip(name, 100));
  const Arguments rest{Values(a.positional.begin() + 1, a.positional.end()), a.keyword};
  for (const Value& item : in.items(s)) {
    if (!in.ok()) break;
    result.push_back(in.apply(*filter, item, rest));  // which may be map again
  }
  return in.iterator(std::move(result));
}

Value select_or_reject(In& in, Self s, Args a, bool keep, bool by_attribute) {
  if (!in.truth(s) && !s.is(Kind::kIterator)) return in.iterator({});
  const size_t offset = by_attribute ? 1 : 0;
  if (by_attribute && a.positional.empty()) return in.fail("Missing parameter for attribute name");
  const BuiltinEntry* test = nullptr;
  Arguments rest;
  if (a.positional.size() > offset) {
    const std::string name = in.str(a.positional[offset]).bytes();
    test = find_test(name);
    if (test == nullptr) return in.fail("No test named '{}'.", clip(name, 100));
    rest = {Values(a.positional.begin() + static_cast<std::ptrdiff_t>(offset) + 1, a.positional.end()), a.keyword};
  }
  Values result;
  for (const Value& item : in.items(s)) {
    if (!in.ok()) break;
    const Value value = by_attribute ? in.attribute_path(item, a.positional[0], Value::none()) : item;
    if (in.truth(test != nullptr ? test->function(in, value, rest) : value) == keep) result.push_back(item);
  }
  return in.iterator(std::move(result));
}

constexpr auto kSequenceFilters = std::to_array<BuiltinEntry>({
    {"batch", batch},
    {"count", length},
    {"dictsort", dictsort},
    {"first", first},
    {"groupby", groupby},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", [](In& in, Self s, Args a) { return extreme(in, s, a, true); }},
    {"min", [](In& in, Self s, Args a) { return extreme(in, s, a, false); }},
    {"reject", [](In& in, Self s, Args a) { return select_or_reject(in, s, a, false, false); }},
    {"rejectattr", [](In& in, Self s, Args a) { return select_or_reject(in, s, a, false, true); }},
    {"reverse", reverse},
    {"select", [](In& in, Self s, Args a) { return select_or_reject(in, s, a, true, false); }},
    {"selectattr", [](In& in, Self s, Args a) { return select_or_reject(in, s, a, true, true); }},
    {"slice", slice},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
});

}  // namespace

const BuiltinEntry* find_sequence_filter(std::string_view name) {
  return find_in(kSequenceFilters, name);
}

}  // namespace quire::text::jinja
