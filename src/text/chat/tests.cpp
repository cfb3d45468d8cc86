// Jinja2's tests ("is ..."), and time formatting.
#include <cmath>
#include <ctime>
#include <map>

#include "base/format.h"
#include "text/chat/interpreter.h"
#include "text/chat/text.h"

namespace neap::chat {
namespace {

const Value& other(const Arguments& a) {
  if (a.list.empty()) fail("a test lacks its argument");
  return a.list.front();
}
bool is_odd(const Value& v) {
  if (!v.defined().is_number()) fail(format("'{}' is neither odd nor even", v.type()));
  return v.is_integer() ? v.integer() % 2 != 0 : std::fmod(v.number(), 2) != 0;
}
bool same_object(const Value& a, const Value& b, Budget& budget) {
  if (a.list() != nullptr || b.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr || b.dict() != nullptr) return a.dict() == b.dict();
  return std::string_view(a.type()) == b.type() && equal(a, b, budget);
}
bool is_lower(std::string_view text, Budget& budget) {
  return lower(text, budget).view() == text && upper(text, budget).view() != text;
}
bool is_upper(std::string_view text, Budget& budget) {
  return upper(text, budget).view() == text && lower(text, budget).view() != text;
}

using I = Interpreter;
using V = Value;
using A = Arguments;

const std::map<std::string_view, Test>& known() {
  static const std::map<std::string_view, Test> kTests = {
      {"boolean", [](I&, const V& v, const A&) { return v.is<bool>(); }},
      {"callable", [](I&, const V& v, const A&) { return v.callable() != nullptr; }},
      {"defined", [](I&, const V& v, const A&) { return !v.is<Undefined>(); }},
      {"undefined", [](I&, const V& v, const A&) { return v.is<Undefined>(); }},
      {"divisibleby",
       [](I& i, const V& v, const A& a) {
         return operate("%", v, other(a), i.budget()).number() == 0;
       }},
      {"even", [](I&, const V& v, const A&) { return !is_odd(v); }},
      {"odd", [](I&, const V& v, const A&) { return is_odd(v); }},
      {"true", [](I&, const V& v, const A&) { return v.is<bool>() && v.truth(); }},
      {"false", [](I&, const V& v, const A&) { return v.is<bool>() && !v.truth(); }},
      {"float", [](I&, const V& v, const A&) { return v.is<double>(); }},
      {"integer", [](I&, const V& v, const A&) { return v.is<std::int64_t>(); }},
      {"number", [](I&, const V& v, const A&) { return v.is_number(); }},
      {"string", [](I&, const V& v, const A&) { return v.text() != nullptr; }},
      {"none", [](I&, const V& v, const A&) { return v.is<None>(); }},
      {"mapping", [](I&, const V& v, const A&) { return v.dict() != nullptr; }},
      {"iterable",
       [](I&, const V& v, const A&) {
         return v.is<Undefined>() || v.text() != nullptr || v.list() != nullptr ||
                v.dict() != nullptr;
       }},
      {"sequence",
       [](I&, const V& v, const A&) {
         return v.is<Undefined>() || v.text() != nullptr || v.list() != nullptr ||
                v.dict() != nullptr;
       }},
      {"in", [](I& i, const V& v, const A& a) { return contains(other(a), v, i.budget()); }},
      {"sameas", [](I& i, const V& v, const A& a) { return same_object(v, other(a), i.budget()); }},
      {"lower", [](I& i, const V& v, const A&) { return is_lower(v.str(i.budget()), i.budget()); }},
      {"upper", [](I& i, const V& v, const A&) { return is_upper(v.str(i.budget()), i.budget()); }},
      {"filter",
       [](I& i, const V& v, const A&) { return find_filter(v.str(i.budget())) != nullptr; }},
      {"test", [](I& i, const V& v, const A&) { return find_test(v.str(i.budget())) != nullptr; }},
      {"escaped", [](I&, const V&, const A&) { return false; }},
      {"eq", [](I& i, const V& v, const A& a) { return equal(v, other(a), i.budget()); }},
      {"equalto", [](I& i, const V& v, const A& a) { return equal(v, other(a), i.budget()); }},
      {"ne", [](I& i, const V& v, const A& a) { return !equal(v, other(a), i.budget()); }},
      {"lt", [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) < 0; }},
      {"lessthan",
       [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) < 0; }},
      {"le", [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) <= 0; }},
      {"gt", [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) > 0; }},
      {"greaterthan",
       [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) > 0; }},
      {"ge", [](I& i, const V& v, const A& a) { return compare(v, other(a), i.budget()) >= 0; }},
  };
  return kTests;
}

}  // namespace

Test find_test(std::string_view name) {
  const auto it = known().find(name);
  return it == known().end() ? nullptr : it->second;
}

Text time_text(std::int64_t unix_time, std::string_view layout, Budget& budget) {
  constexpr std::size_t kMaxLayout = 1024;
  if (layout.empty()) return {};
  if (layout.size() > kMaxLayout)
    fail(format("strftime_now: a format of {} bytes, at most {}", layout.size(), kMaxLayout));
  const auto seconds = static_cast<std::time_t>(unix_time);
  std::tm local{};
  localtime_r(&seconds, &local);
  String made(layout.size() * 32 + 64, '\0', budget);
  made.resize(std::strftime(made.data(), made.size(), std::string(layout).c_str(), &local));
  return made;
}

}  // namespace neap::chat
