// The tests of Jinja2 ("is ..."), and the time.
#include <cmath>
#include <ctime>
#include <map>

#include "base/format.h"
#include "chat/interpreter.h"
#include "chat/text.h"

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
bool same_object(const Value& a, const Value& b) {
  if (a.list() != nullptr || b.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr || b.dict() != nullptr) return a.dict() == b.dict();
  return std::string_view(a.type()) == b.type() && equal(a, b);
}
bool is_lower(const std::string& text) {
  return lower(text) == text && upper(text) != text;
}
bool is_upper(const std::string& text) {
  return upper(text) == text && lower(text) != text;
}

using I = Interpreter;
using V = Value;
using A = Arguments;

const std::map<std::string_view, Test>& known() {
  static const std::map<std::string_view, Test> tests = {
      {"boolean", [](I&, const V& v, const A&) { return v.is<bool>(); }},
      {"callable", [](I&, const V& v, const A&) { return v.callable() != nullptr; }},
      {"defined", [](I&, const V& v, const A&) { return !v.is<Undefined>(); }},
      {"undefined", [](I&, const V& v, const A&) { return v.is<Undefined>(); }},
      {"divisibleby",
       [](I&, const V& v, const A& a) { return operate("%", v, other(a)).number() == 0; }},
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
      {"in", [](I&, const V& v, const A& a) { return contains(other(a), v); }},
      {"sameas", [](I&, const V& v, const A& a) { return same_object(v, other(a)); }},
      {"lower", [](I&, const V& v, const A&) { return is_lower(v.str()); }},
      {"upper", [](I&, const V& v, const A&) { return is_upper(v.str()); }},
      {"filter", [](I&, const V& v, const A&) { return find_filter(v.str()) != nullptr; }},
      {"test", [](I&, const V& v, const A&) { return find_test(v.str()) != nullptr; }},
      {"escaped", [](I&, const V&, const A&) { return false; }},
      {"eq", [](I&, const V& v, const A& a) { return equal(v, other(a)); }},
      {"equalto", [](I&, const V& v, const A& a) { return equal(v, other(a)); }},
      {"ne", [](I&, const V& v, const A& a) { return !equal(v, other(a)); }},
      {"lt", [](I&, const V& v, const A& a) { return compare(v, other(a)) < 0; }},
      {"lessthan", [](I&, const V& v, const A& a) { return compare(v, other(a)) < 0; }},
      {"le", [](I&, const V& v, const A& a) { return compare(v, other(a)) <= 0; }},
      {"gt", [](I&, const V& v, const A& a) { return compare(v, other(a)) > 0; }},
      {"greaterthan", [](I&, const V& v, const A& a) { return compare(v, other(a)) > 0; }},
      {"ge", [](I&, const V& v, const A& a) { return compare(v, other(a)) >= 0; }},
  };
  return tests;
}

}  // namespace

Test find_test(std::string_view name) {
  const auto it = known().find(name);
  return it == known().end() ? nullptr : it->second;
}

std::string time_text(std::int64_t unix_time, const std::string& layout) {
  if (layout.empty()) return "";
  const auto seconds = static_cast<std::time_t>(unix_time);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string made(layout.size() * 32 + 64, '\0');
  made.resize(std::strftime(made.data(), made.size(), layout.c_str(), &local));
  return made;
}

}  // namespace neap::chat
