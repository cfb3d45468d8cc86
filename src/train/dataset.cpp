#include "train/dataset.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/file.h"
#include "base/format.h"
#include "base/random.h"

namespace neap::train {
namespace {

// A text or a conversation.
void check_field(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_string()) return;
  if (!value.is_array()) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: field \"{}\" is {}; text or a list of messages is wanted", where, key,
                       value.type_name()));
  }
  if (!is_conversation(value)) {
    throw Error(
        ErrorCode::kCorrupt,
        format("{}: field \"{}\" is a list, but not of messages with a text \"role\"", where, key));
  }
}

TextRow parse_row(std::string_view line, const std::vector<std::string>& keys,
                  const std::vector<std::string>& optional, bool keep, const std::string& where) {
  Json json = value_or_throw(parse_json(line, where));
  if (!json.is_object()) {
    throw Error(ErrorCode::kCorrupt, format("{}: the line is {}; each line is one JSON object",
                                            where, json.type_name()));
  }
  TextRow row;
  row.where = where;
  for (const std::string& key : keys) {
    if (!json.contains(key)) {
      std::string have;
      for (const auto& item : json.items()) have += (have.empty() ? "" : ", ") + item.key();
      throw Error(ErrorCode::kCorrupt,
                  format("{}: field \"{}\" is missing; the line has: {}", where, key, have));
    }
    check_field(json[key], key, where);
    row.fields.push_back(json[key]);
  }
  for (const std::string& key : optional) {
    row.fields.push_back(json.value(key, Json()));
    if (!row.fields.back().is_null()) check_field(row.fields.back(), key, where);
  }
  if (keep) row.row = std::move(json);
  return row;
}

}  // namespace

bool is_conversation(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& message) {
           return message.is_object() && message.contains("role") && message["role"].is_string();
         });
}

std::vector<TextRow> read_rows(const std::vector<std::filesystem::path>& files,
                               const std::vector<std::string>& keys,
                               const std::vector<std::string>& optional, bool keep) {
  std::vector<TextRow> rows;
  std::string names;
  for (const std::filesystem::path& file : files) {
    const std::string text = value_or_throw(read_file(file, 4_GiB));
    names += (names.empty() ? "" : ", ") + file.string();
    std::string_view rest = text;
    for (std::size_t number = 1; !rest.empty(); ++number) {
      const auto end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      rows.push_back(parse_row(line, keys, optional, keep, format("{}:{}", file.string(), number)));
    }
  }
  if (rows.empty()) {
    throw Error(ErrorCode::kInvalidArgument, names.empty()
                                                 ? std::string("The list of data files is empty")
                                                 : format("{} hold no rows", names));
  }
  return rows;
}

BatchOrder::BatchOrder(std::size_t rows, std::size_t batch, bool shuffle, std::uint64_t seed)
    : rows_(rows), batch_(batch), shuffle_(shuffle), seed_(seed) {
  if (batch == 0 || rows < batch) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The training files have {} rows, fewer than data.train_batch_size {}", rows,
                       batch));
  }
}

std::int64_t BatchOrder::steps_per_epoch() const {
  return static_cast<std::int64_t>(rows_ / batch_);
}

std::vector<std::size_t> BatchOrder::batch(std::int64_t step) const {
  const std::int64_t epoch = epoch_of(step);
  if (epoch != cached_epoch_) {
    order_.resize(rows_);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    if (shuffle_) {
      const std::uint64_t key =
          random_key({seed_, 0x6f72646572ULL, static_cast<std::uint64_t>(epoch)});
      for (std::size_t i = rows_ - 1; i > 0; --i) {
        // The modulo's bias is below 2^-32 for any set of rows that fits into memory.
        std::swap(order_[i], order_[mix(key + i) % (i + 1)]);
      }
    }
    cached_epoch_ = epoch;
  }
  const auto first =
      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(step % steps_per_epoch()) * batch_);
  return {order_.begin() + first, order_.begin() + first + static_cast<std::ptrdiff_t>(batch_)};
}

}  // namespace neap::train
