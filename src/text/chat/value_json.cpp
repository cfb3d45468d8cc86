// Implements Python's json.dumps.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "text/chat/value.h"
#include "text/tokenizer/utf8.h"

namespace neap::chat {
namespace {

namespace utf8 = text::utf8;

void append_json_text(String& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::string_view rest = text; !rest.empty();) {
    const utf8::Point p = utf8::front(rest);
    const std::string_view bytes = rest.substr(0, p.bytes);
    rest.remove_prefix(p.bytes);
    switch (p.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (p.value >= 0 && (p.value < 0x20 || (ascii && p.value >= 0x7f && p.value < 0x10000))) {
          out += format("\\u{:04x}", p.value);
        } else if (ascii && p.value >= 0x10000) {
          const std::int32_t v = p.value - 0x10000;
          out += format("\\u{:04x}\\u{:04x}", 0xd800 + (v >> 10), 0xdc00 + (v & 0x3ff));
        } else {
          out += bytes;
        }
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget)
      : out(budget), style_(style), budget_(budget) {}
  void write(const Value& value, int depth) {
    value.defined();
    budget_.spend(1);
    check_length(out.size());
    if (value.is<None>()) {
      out += "null";
    } else if (const auto* b = value.get<bool>()) {
      out += *b ? "true" : "false";
    } else if (const auto* d = value.get<double>()) {
      out += std::isnan(*d)   ? "NaN"
             : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity")
                              : float_text(*d);
    } else if (value.is_integer()) {
      out += std::to_string(value.integer());
    } else if (value.text() != nullptr) {
      append_text(*value.text());
    } else if (value.list() != nullptr) {
      members('[', ']', value.list()->items, depth,
              [&](const Value& item) { write(item, depth + 1); });
    } else if (value.dict() != nullptr) {
      auto items = value.dict()->items;
      if (style_.sort_keys)
        std::stable_sort(items.begin(), items.end(), [&](const auto& x, const auto& y) {
          return compare(x.first, y.first, budget_) < 0;
        });
      members('{', '}', items, depth, [&](const auto& item) {
        if (item.first.text() != nullptr) {
          append_text(*item.first.text());
        } else {
          JsonWriter key(style_, budget_);
          key.write(item.first, depth + 1);
          out += '"';
          out += key.out;
          out += '"';
        }
        out += style_.key_separator;
        write(item.second, depth + 1);
      });
    } else {
      fail(format("Object of type {} is not JSON serializable", value.type()));
    }
  }
  String out;

 private:
  void append_text(std::string_view text) {
    budget_.read(text.size());
    append_json_text(out, text, style_.ensure_ascii);
  }
  template <class Items, class Write>
  void members(char open, char close, const Items& items, int depth, const Write& write_one) {
    out += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += style_.item_separator;
      line(depth + 1);
      write_one(item);
      first = false;
    }
    if (!first) line(depth);
    out += close;
  }
  void line(int depth) {
    if (!style_.pretty) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }
  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace neap::chat
