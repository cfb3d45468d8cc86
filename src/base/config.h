// A typed table of configuration keys bound to the fields of a struct.
//
// One table serves four uses: the TOML file, `key.path=value` on the command line, `--json` output
// and the reference page in docs/. A key's default is the value of its field at the time of
// binding. A key declares the conditions under which it is read, and its other defaults. Both may
// depend on other keys.
//
// Failure   every error names file:line or the override, the key, the value, and the accepted
//           values.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap {

/// How to treat a key that is set but not read.
enum class Unread : std::uint8_t {
  kHarmless,   ///< a warning
  kForgotten,  ///< an error; a warning if the key that decides was also set
  kMistake,    ///< an error
};

/// The largest integer of a key without a maximum of its own.
inline constexpr std::int64_t kMostInteger = (std::int64_t{1} << 31) - 1;
/// A bound of a key as text for people: "16777216", "1e-06".
[[nodiscard]] std::string bound_text(double bound);

/// Condition under which a key is read: another key has one of some values.
struct ConfigCondition {
  std::string key{};              ///< the key that decides, in the same table
  std::vector<Json> values{};     ///< values of that key
  std::function<bool()> holds{};  ///< replaces the comparison with `values`
  std::string words{};            ///< text instead of `values` if holds() decides: "above 0"
  Unread unread = Unread::kHarmless;
  std::string otherwise{};  ///< behaviour without the key: "every weight is trained"
};

class ConfigTable {
 public:
  struct Key {
    std::string path;  ///< "actor_rollout_ref.actor.clip_ratio"
    std::string
        type;  ///< "boolean", "integer", "number", "size", "text", "list of text", "list of numbers"
    std::string unit;                  ///< "tokens", "seconds"; empty when the number has none
    std::string help;                  ///< one sentence
    std::string default_text;          ///< as TOML
    std::vector<std::string> choices;  ///< for text with a fixed set of values
    /// Limits of a number, or of each number of a list. Every number is finite. An integer without
    /// a maximum is at most kMostInteger.
    std::optional<double> minimum;
    std::optional<double> maximum;
    /// Set by a file or an override. An empty value resets the key if its default is an empty text
    /// or list.
    bool is_set = false;
    std::string origin;           ///< "ppo.toml:12" or "command line"; also set for an empty value
    const void* field = nullptr;  ///< the bound field
    std::vector<ConfigCondition> conditions;  ///< the key is read if all of them hold
    struct Default {
      std::string where;  ///< text of the condition for people: "sft"
      std::function<bool()> holds;
      Json value;
    };
    std::vector<Default> other_defaults;  ///< the first that holds applies if the key is unset
    std::function<Status(const Json&)> assign;
    std::function<Json()> read;

    Key& in(std::string unit_name) {
      unit = std::move(unit_name);
      return *this;
    }
    Key& at_least(double low) {
      minimum = low;
      return *this;
    }
    Key& at_most(double high) {
      maximum = high;
      return *this;
    }
    Key& one_of(std::vector<std::string> values) {
      choices = std::move(values);
      return *this;
    }
    Key& only(ConfigCondition condition) {
      conditions.push_back(std::move(condition));
      return *this;
    }
    Key& default_where(std::string where, std::function<bool()> holds, Json value) {
      other_defaults.push_back({std::move(where), std::move(holds), std::move(value)});
      return *this;
    }
  };

  /// Keys and lists bound during its lifetime get its condition before their own.
  class Section {
   public:
    Section(ConfigTable& table, ConfigCondition condition) : table_(table) {
      table_.sections_.push_back(std::move(condition));
    }
    ~Section() { table_.sections_.pop_back(); }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    ConfigTable& table_;
  };

  /// Binds `path` to a field that outlives the table.
  Key& bind(std::string path, bool* field, std::string help);
  /// An empty text means no value.
  Key& bind(std::string path, std::optional<bool>* field, std::string help);
  Key& bind(std::string path, std::int64_t* field, std::string help);
  /// An integer or "auto". For "auto", `automatic` is set and the field keeps its value.
  Key& bind(std::string path, std::int64_t* field, bool* automatic, std::string help);
  Key& bind(std::string path, double* field, std::string help);
  Key& bind(std::string path, std::string* field, std::string help);
  Key& bind(std::string path, Bytes* field, std::string help);
  Key& bind(std::string path, std::vector<std::string>* field, std::string help);
  Key& bind(std::string path, std::vector<double>* field, std::string help);
  /// A text with conversions, such as the names of an enum. `assign` stores the text in the field;
  /// `read` returns it.
  Key& bind(std::string path, const void* field, std::function<Status(const std::string&)> assign,
            std::function<std::string()> read, std::string help);
  /// A list of such texts.
  Key& bind(std::string path, const void* field,
            std::function<Status(const std::vector<std::string>&)> assign,
            std::function<std::vector<std::string>()> read, std::string help);
  /// Binds a list of tables, each written as `[[path]]`. `bind_item` binds the keys of one table.
  /// `items` outlives this table. On the command line `path.0.key=value` sets a key of the first
  /// table; the number after the last one adds a table.
  template <class T>
  void bind_list(std::string path, std::deque<T>* items, void (*bind_item)(ConfigTable&, T&),
                 std::string help) {
    const auto bound = [bind_item](T& item) {
      ConfigTable table;
      bind_item(table, item);
      return table;
    };
    auto example = std::make_shared<T>();
    List list;
    list.path = std::move(path);
    list.help = std::move(help);
    list.reference_item = example;
    list.reference.push_back(bound(*example));
    list.append = [items, bound] { return bound(items->emplace_back()); };
    list.clear = [items] { items->clear(); };
    for (T& item : *items) list.items.push_back(bound(item));
    add_list(std::move(list));
  }

  /// Reads a TOML file. Fails on unknown keys and suggests the nearest known key.
  [[nodiscard]] Status load_file(const std::filesystem::path& path);
  [[nodiscard]] Status load_text(std::string_view toml, std::string_view name);
  /// Applies "key.path=value" from a command line. The value is TOML; bare words are text.
  [[nodiscard]] Status apply_override(std::string_view assignment);

  /// The bound key, to declare more properties of it.
  [[nodiscard]] Key& at(std::string_view path);
  /// Returns a sentence that says what to use instead of an unknown key, or "". It is first called
  /// with `exact`. It is called again without `exact` if no known key has the same last word.
  using Explain = std::function<std::string(std::string_view path, bool exact)>;
  void explain_unknown(Explain explain) { explain_ = std::move(explain); }

  /// Gives unset keys the default that the values of other keys select.
  [[nodiscard]] Status apply_defaults();
  /// Keys that are set and not read: one sentence per reason, or the first error. `harmless` tells
  /// by a key's origin that it needs no warning.
  [[nodiscard]] Result<std::vector<std::string>> unread(
      const std::function<bool(const std::string& origin)>& harmless = {}) const;

  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }
  [[nodiscard]] const Key* find(std::string_view path) const;
  /// The key bound to `field`; null if there is none.
  [[nodiscard]] const Key* find_bound(const void* field) const;
  /// Effective values by path: first keys, then lists.
  [[nodiscard]] std::vector<std::pair<std::string, Json>> values() const;
  /// Effective values as JSON, nested by dots.
  [[nodiscard]] Json to_json() const;
  /// The reference as Markdown lists, one per section. Keys that an earlier section has with the
  /// same type, default and help are named only: "`c`, `d` are as in `a.b`."
  [[nodiscard]] std::string to_markdown() const;

 private:
  struct List {
    std::string path, help;
    std::size_t position = 0;  ///< number of the table's keys bound before it, for the reference
    std::vector<ConfigCondition> conditions;
    std::function<ConfigTable()> append;
    std::function<void()> clear;
    std::vector<ConfigTable> items;
    std::vector<ConfigTable> reference;    ///< one table that holds the keys with their defaults
    std::shared_ptr<void> reference_item;  ///< the object that the keys of `reference` are bound to
  };
  Key& add(std::string path, const void* field, std::string type, std::string help);
  void add_list(List list);
  Status set(std::string_view path, const Json& value, const std::string& origin);
  /// `rest` is "" (the whole list), "0" (a table) or "0.key".
  Status set_in_list(List& list, std::string_view rest, const Json& value,
                     const std::string& origin);
  /// The list that contains `path`, and the rest of the path after the list's own; null if there is
  /// none.
  [[nodiscard]] const List* list_of(std::string_view path, std::string_view* rest) const;
  /// Suggests keys for an unknown path.
  [[nodiscard]] std::string hint(std::string_view path) const;
  [[nodiscard]] std::string nearest(std::string_view path) const;
  struct Reason;
  [[nodiscard]] bool holds(const ConfigCondition& condition) const;
  [[nodiscard]] std::string reason(const ConfigCondition& condition) const;
  [[nodiscard]] std::string wish(const ConfigCondition& condition, bool many) const;
  [[nodiscard]] Status find_unread(const std::function<bool(const std::string&)>& harmless,
                                   std::vector<Reason>& reasons) const;
  [[nodiscard]] Status note_unread(const std::string& name, const std::string& origin,
                                   const std::vector<ConfigCondition>& conditions,
                                   std::vector<Reason>& reasons) const;
  std::string prefix_;  ///< prefix of an item's keys in messages: "reward.functions.0."
  std::vector<Key> keys_;
  std::vector<List> lists_;
  std::vector<ConfigCondition> sections_;  ///< sections that exist now
  Explain explain_;
};

/// Compares two results of to_json(). Lists keys in both whose values differ, as "path: was 1, is
/// 2".
[[nodiscard]] std::vector<std::string> config_differences(const Json& before, const Json& now);

}  // namespace neap
