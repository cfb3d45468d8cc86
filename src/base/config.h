// A typed table of configuration keys bound to the fields of a struct.
//
// One table serves four readers: the TOML file, `key.path=value` on the command line, `--json`
// output and the reference page in docs/. A key's default is the value of its field when it is bound.
// A key declares when it is read and which other defaults it has; both may depend on other keys.
//
// Failure   every error names file:line or the override, the key, the value, and what is accepted.
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

/// What it means that a key is set which nothing reads.
enum class Unread : std::uint8_t {
  kHarmless,   ///< a warning
  kForgotten,  ///< an error, unless the key that decides was set as well: a warning then
  kMistake,    ///< an error
};

/// The largest integer of a key that names no maximum.
inline constexpr std::int64_t kMostInteger = (std::int64_t{1} << 31) - 1;
/// "16777216", "1e-06": a bound of a key for people.
[[nodiscard]] std::string bound_text(double bound);

/// When a key is read: where another key has one of some values.
struct ConfigCondition {
  std::string key{};              ///< the one that decides, in the same table
  std::vector<Json> values{};     ///< of it
  std::function<bool()> holds{};  ///< decides instead of `values`
  std::string words{};            ///< `values` for people, where holds() decides: "above 0"
  Unread unread = Unread::kHarmless;
  std::string otherwise{};  ///< what happens instead: "every weight is trained"
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
    /// Of a number, or of each of a list. Every number is finite, and an integer at most kMostInteger where
    /// its key has no maximum of its own.
    std::optional<double> minimum;
    std::optional<double> maximum;
    /// By file or override. An empty value, where the default is an empty text or list, takes back
    /// what was set before.
    bool is_set = false;
    std::string origin;           ///< "ppo.toml:12" or "command line", also of an empty value
    const void* field = nullptr;  ///< that it is bound to
    std::vector<ConfigCondition> conditions;  ///< the key is read where all of them hold
    struct Default {
      std::string where;  ///< "sft", for people
      std::function<bool()> holds;
      Json value;
    };
    std::vector<Default> other_defaults;  ///< the first that holds, where the key is not set
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

  /// Keys and lists that are bound while it lives have its condition, before their own.
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
  /// "" is no value.
  Key& bind(std::string path, std::optional<bool>* field, std::string help);
  Key& bind(std::string path, std::int64_t* field, std::string help);
  /// An integer, or "auto": then `automatic` is set and the field stays as it is.
  Key& bind(std::string path, std::int64_t* field, bool* automatic, std::string help);
  Key& bind(std::string path, double* field, std::string help);
  Key& bind(std::string path, std::string* field, std::string help);
  Key& bind(std::string path, Bytes* field, std::string help);
  Key& bind(std::string path, std::vector<std::string>* field, std::string help);
  Key& bind(std::string path, std::vector<double>* field, std::string help);
  /// A text that `assign` puts into the field and `read` gives back, as names of an enum.
  Key& bind(std::string path, const void* field, std::function<Status(const std::string&)> assign,
            std::function<std::string()> read, std::string help);
  /// A list of such texts.
  Key& bind(std::string path, const void* field,
            std::function<Status(const std::vector<std::string>&)> assign,
            std::function<std::vector<std::string>()> read, std::string help);
  /// A list of tables, `[[path]]` each; `bind_item` binds the keys of one. `items` outlives the
  /// table. On the command line `path.0.key=value` sets a key of the first, and the number after
  /// the last adds one.
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

  /// Reads a TOML file. Unknown keys are errors, with the nearest known key as a hint.
  [[nodiscard]] Status load_file(const std::filesystem::path& path);
  [[nodiscard]] Status load_text(std::string_view toml, std::string_view name);
  /// "key.path=value" from a command line. The value is TOML; bare words are taken as text.
  [[nodiscard]] Status apply_override(std::string_view assignment);

  /// A key that is bound, to say more of it.
  [[nodiscard]] Key& at(std::string_view path);
  /// A sentence that says what to do instead of an unknown key, or "". Called with `exact` first,
  /// and without it where no known key has the same last word.
  using Explain = std::function<std::string(std::string_view path, bool exact)>;
  void explain_unknown(Explain explain) { explain_ = std::move(explain); }

  /// Gives keys that are not set the default that goes with the values of other keys.
  [[nodiscard]] Status apply_defaults();
  /// Keys that are set and not read: sentences, one for each reason, or the first error.
  /// `harmless` says of a key's origin that it needs no words.
  [[nodiscard]] Result<std::vector<std::string>> unread(
      const std::function<bool(const std::string& origin)>& harmless = {}) const;

  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }
  [[nodiscard]] const Key* find(std::string_view path) const;
  /// The key that is bound to `field`; null: none is.
  [[nodiscard]] const Key* find_bound(const void* field) const;
  /// Effective values by path: keys, then lists.
  [[nodiscard]] std::vector<std::pair<std::string, Json>> values() const;
  /// The same, nested by dots.
  [[nodiscard]] Json to_json() const;
  /// A column of the reference, of what is not in the table.
  struct Column {
    std::string title;
    std::function<std::string(const std::string& path)> cell;
  };
  /// Reference table in Markdown, one section for each first path element.
  [[nodiscard]] std::string to_markdown(const std::vector<Column>& columns = {}) const;

 private:
  struct List {
    std::string path, help;
    std::size_t position = 0;  ///< number of the table's keys before it, for the reference
    std::vector<ConfigCondition> conditions;
    std::function<ConfigTable()> append;
    std::function<void()> clear;
    std::vector<ConfigTable> items;
    std::vector<ConfigTable> reference;    ///< one: the keys with their defaults
    std::shared_ptr<void> reference_item;  ///< what its keys are bound to
  };
  Key& add(std::string path, const void* field, std::string type, std::string help);
  void add_list(List list);
  Status set(std::string_view path, const Json& value, const std::string& origin);
  /// `rest` is "" (the whole list), "0" (a table) or "0.key".
  Status set_in_list(List& list, std::string_view rest, const Json& value,
                     const std::string& origin);
  /// The list that `path` is in, and what follows the list's own path; null if there is none.
  [[nodiscard]] const List* list_of(std::string_view path, std::string_view* rest) const;
  /// What an unknown key may be.
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
  std::string prefix_;  ///< of an item's keys in messages: "reward.functions.0."
  std::vector<Key> keys_;
  std::vector<List> lists_;
  std::vector<ConfigCondition> sections_;  ///< those that live
  Explain explain_;
};

/// Keys of two to_json() that both have with different values, as "path: was 1, is 2".
[[nodiscard]] std::vector<std::string> config_differences(const Json& before, const Json& now);

}  // namespace neap
