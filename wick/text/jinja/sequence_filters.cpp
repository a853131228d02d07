// Filters on lists and dicts. Jinja's generators are computed at once and handed out as Generators.
#include <algorithm>
#include <array>

#include "wick/text/jinja/filter_tables.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

using Values = std::vector<Value>;

Value generator(Machine& machine, Values values) {
  return ObjectRef(std::make_shared<Generator>(machine.budget, machine.list(std::move(values))));
}

// Keys of items, in the same order; sorts both by the keys.
void sort_by(Machine& machine, Values& items, const Values& keys, bool descends) {
  machine.budget.room(3 * items.size() * sizeof(Value));
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return descends ? ordered(machine, "<", keys[b], keys[a]) : ordered(machine, "<", keys[a], keys[b]);
  });
  Values sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  items = std::move(sorted);
}

Value key_of(Machine& machine, const AttributePath& path, const Value& item, bool is_case_sensitive,
             const Value& otherwise = {}) {
  const Value key = path.of(machine, item, otherwise);
  return is_case_sensitive ? key : without_case(machine, key);
}

Value batch(Machine& machine, const Value& subject, const Bound& given) {
  const int64_t count = given.integer(0);
  Values batches, current;
  Iteration items(machine, subject);
  for (Value item; items.next(item);) {
    if (int64_t(current.size()) == count) batches.push_back(machine.list(std::exchange(current, {})));
    current.push_back(std::move(item));
  }
  if (!current.empty() && given.is_given(1) && int64_t(current.size()) < count) {
    require(count <= int64_t(kMaxMemoryBytes / sizeof(Value)), "expected shorter batches, found {}", count);
    machine.budget.room(size_t(count) * sizeof(Value));
    current.resize(size_t(count), given[1]);
  }
  if (!current.empty()) batches.push_back(machine.list(std::move(current)));
  return generator(machine, std::move(batches));
}

Value slice_filter(Machine& machine, const Value& subject, const Bound& given) {
  const Values items = all_items(machine, subject);
  const int64_t slices = given.integer(0);
  require(slices != 0, "expected a number of slices, found 0");
  Values made;
  size_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const bool is_longer = i < int64_t(items.size()) % slices;
    const size_t count = items.size() / size_t(slices) + (is_longer ? 1 : 0);
    machine.budget.room((count + 2 * made.size() + 1) * sizeof(Value));
    Values part(items.begin() + ptrdiff_t(at), items.begin() + ptrdiff_t(at + count));
    at += count;
    if (!is_longer && given.is_given(1)) part.push_back(given[1]);
    made.push_back(machine.list(std::move(part)));
  }
  return generator(machine, std::move(made));
}

Value dictsort(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  require(subject.is<Mapping>(), "expected a dict for dictsort, found {}", type_name(subject));
  const std::string_view by = given.text(1, "key");
  require(by == "key" || by == "value", "expected \"key\" or \"value\" for dictsort, found another");
  Values items, keys;
  for (const auto& [key, value] : subject.get<Mapping>()->pairs) {
    items.push_back(machine.tuple({key, value}));
    const Value& ordering = by == "key" ? key : value;
    keys.push_back(given.flag(0) ? ordering : without_case(machine, ordering));
  }
  sort_by(machine, items, keys, given.flag(2));
  return machine.list(std::move(items));
}

Value first(Machine& machine, const Value& subject, const Bound&) {
  Value item;
  if (Iteration(machine, subject).next(item)) return item;
  return undefined(machine.budget, "expected a first item, found none");
}

bool is_generator(const Value& value) { return value.is<ObjectRef>() && value.get<ObjectRef>()->is_iterator(); }

Value last(Machine& machine, const Value& subject, const Bound&) {
  require(!is_generator(subject), "expected a list for last, found a generator");
  Values items = all_items(machine, subject);
  return items.empty() ? undefined(machine.budget, "expected a last item, found none") : items.back();
}

Value reverse(Machine& machine, const Value& subject, const Bound&) {
  if (subject.is_string()) return slice(machine, subject, {}, {}, int64_t(-1));
  Values items = all_items(machine, subject);
  std::reverse(items.begin(), items.end());
  return is_generator(subject) ? machine.list(std::move(items)) : generator(machine, std::move(items));
}

Value groupby(Machine& machine, const Value& subject, const Bound& given) {
  const AttributePath path(machine, given[0]);
  const Value otherwise = given.get(1);
  Values items = all_items(machine, subject), keys, groups;
  for (const Value& item : items) keys.push_back(key_of(machine, path, item, given.flag(2), otherwise));
  Values sorted_keys = keys;
  sort_by(machine, items, keys, false);
  sort_by(machine, sorted_keys, keys, false);
  for (size_t first_of = 0, end = 0; first_of < items.size(); first_of = end) {
    Values members;
    for (; end < items.size() && equal(machine, sorted_keys[end], sorted_keys[first_of]); ++end)
      members.push_back(items[end]);
    if (end == first_of) members.push_back(items[end++]);  // a key that is not equal to itself
    Value grouper = path.of(machine, members[0], otherwise);
    groups.push_back(
        ObjectRef(std::make_shared<Group>(machine.budget, std::move(grouper), machine.list(std::move(members)))));
  }
  return machine.list(std::move(groups));
}

Value items_filter(Machine& machine, const Value& subject, const Bound&) {
  if (subject.is_undefined()) return generator(machine, {});
  require(subject.is<Mapping>(), "expected a dict for items, found {}", type_name(subject));
  Values pairs;
  for (const auto& [key, value] : subject.get<Mapping>()->pairs) pairs.push_back(machine.tuple({key, value}));
  return generator(machine, std::move(pairs));
}

Value join(Machine& machine, const Value& subject, const Bound& given) {
  const String separator = given.has(0) ? str(machine, given[0]) : machine.string("");
  const AttributePath path(machine, given.get(1));
  Text out(machine);
  Iteration items(machine, subject);
  bool is_first = true;
  for (Value item; items.next(item); is_first = false) {
    if (!is_first) out += *separator;
    add_str(machine, out, path.of(machine, item));
  }
  return out.value();
}

Value length_filter(Machine& machine, const Value& subject, const Bound&) { return int64_t(length(machine, subject)); }

Value list_filter(Machine& machine, const Value& subject, const Bound&) {
  return machine.list(all_items(machine, subject));
}

Value extreme(Machine& machine, const Value& subject, const Bound& given, std::string_view symbol) {
  const AttributePath path(machine, given.get(1));
  Iteration items(machine, subject);
  Value best;
  if (!items.next(best)) return undefined(machine.budget, "expected items to choose from, found none");
  Value best_key = key_of(machine, path, best, given.flag(0));
  for (Value item; items.next(item);) {
    Value key = key_of(machine, path, item, given.flag(0));
    if (ordered(machine, symbol, key, best_key)) best = item, best_key = std::move(key);
  }
  return best;
}

Value max_filter(Machine& machine, const Value& subject, const Bound& given) {
  return extreme(machine, subject, given, ">");
}
Value min_filter(Machine& machine, const Value& subject, const Bound& given) {
  return extreme(machine, subject, given, "<");
}

// By one attribute or by several: "age,name".
Value sort(Machine& machine, const Value& subject, const Bound& given) {
  std::vector<AttributePath> paths;
  if (given.has(2) && given[2].is_string()) {
    std::string_view rest = given[2].bytes();
    for (size_t comma = 0; comma != rest.npos; rest.remove_prefix(std::min(comma + 1, rest.size()))) {
      comma = rest.find(',');
      paths.emplace_back(machine, machine.string(std::string(rest.substr(0, comma))));
    }
  } else {
    paths.emplace_back(machine, given.get(2));
  }
  Values items = all_items(machine, subject), keys;
  for (const Value& item : items) {
    Values parts;
    for (const AttributePath& path : paths) parts.push_back(key_of(machine, path, item, given.flag(1)));
    keys.push_back(machine.list(std::move(parts)));
  }
  sort_by(machine, items, keys, given.flag(0));
  return machine.list(std::move(items));
}

Value sum(Machine& machine, const Value& subject, const Bound& given) {
  const AttributePath path(machine, given.get(0));
  Value total = given.get(1, int64_t(0));
  require(!total.is_string(), "expected a start of sum that is no string, found one");
  Iteration items(machine, subject);
  for (Value item; items.next(item);) total = binary(machine, "+", total, path.of(machine, item));
  return total;
}

Value unique(Machine& machine, const Value& subject, const Bound& given) {
  const AttributePath path(machine, given.get(1));
  Dict::Pairs seen;
  Values kept;
  Iteration items(machine, subject);
  for (Value item; items.next(item);) {
    const size_t before = seen.size();
    put(machine, seen, key_of(machine, path, item, given.flag(0)), {});
    if (seen.size() > before) kept.push_back(std::move(item));
  }
  return generator(machine, std::move(kept));
}

constexpr std::array<Filter, 17> kSequenceFilters{{{"batch", "linecount fill_with?", batch},
                                                   {"count", "", length_filter},
                                                   {"dictsort", "case_sensitive? by? reverse?", dictsort},
                                                   {"first", "", first},
                                                   {"groupby", "attribute default? case_sensitive?", groupby},
                                                   {"items", "", items_filter},
                                                   {"join", "d? attribute?", join},
                                                   {"last", "", last},
                                                   {"length", "", length_filter},
                                                   {"list", "", list_filter},
                                                   {"max", "case_sensitive? attribute?", max_filter},
                                                   {"min", "case_sensitive? attribute?", min_filter},
                                                   {"reverse", "", reverse},
                                                   {"slice", "slices fill_with?", slice_filter},
                                                   {"sort", "reverse? case_sensitive? attribute?", sort},
                                                   {"sum", "attribute? start?", sum},
                                                   {"unique", "case_sensitive? attribute?", unique}}};

}  // namespace

std::span<const Filter> sequence_filters() { return kSequenceFilters; }

}  // namespace wick::jinja
