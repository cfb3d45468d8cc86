#include "rlhf/data/pair_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "data/fields.h"

namespace neap::rlhf {
namespace {

Status bad_row(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}

// The length in bytes of the common prefix. It ends at a whole character, and without a trailing
// space.
std::size_t common_bytes(const std::string& a, const std::string& b) {
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  const auto continues = [&](const std::string& text) {
    return n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0U) == 0x80U;
  };
  while (n > 0 && (continues(a) || continues(b))) --n;
  if (n > 0 && a[n - 1] == ' ') --n;
  return n;
}

Json messages(const Json& all, std::size_t first, std::size_t end) {
  Json out = Json::array();
  for (std::size_t i = first; i < end; ++i) out.push_back(all[i]);
  return out;
}

// Moves the common prefix of both responses to the prompt.
Status split_prompt(PairRow& row) {
  const bool whole = row.chosen.is_array() && row.rejected.is_array() && row.chosen.size() > 1;
  if (!row.prompt.is_null() && (row.prompt.is_array() || !whole)) return {};
  if (row.chosen.is_array() != row.rejected.is_array())
    return bad_row("the row has no prompt, and one response is text, the other a conversation");
  std::size_t n = 0;
  if (row.chosen.is_array()) {
    const std::size_t most = std::min(row.chosen.size(), row.rejected.size());
    while (n < most && row.chosen[n] == row.rejected[n]) ++n;
    if (n > 0 && n == most) --n;  // if conversations are equal, the last message is the response
    row.prompt = messages(row.chosen, 0, n);
    row.chosen = messages(row.chosen, n, row.chosen.size());
    row.rejected = messages(row.rejected, n, row.rejected.size());
  } else {
    const std::string chosen = row.chosen.get<std::string>();
    const std::string rejected = row.rejected.get<std::string>();
    n = common_bytes(chosen, rejected);
    row.prompt = chosen.substr(0, n);
    row.chosen = chosen.substr(n);
    row.rejected = rejected.substr(n);
  }
  return n > 0 ? Status() : bad_row("the row has no prompt, and the responses start differently");
}

// The responses from best to worst: the ranking, or the chosen and the rejected response.
Result<std::vector<Json>> responses_of(const Json& row, const spec::DataConfig& data) {
  std::vector<Json> out;
  if (row.contains(data.ranking_key)) {
    const Json& list = row[data.ranking_key];
    if (!list.is_array() || list.size() < 2)
      return bad_row(
          format("field \"{}\" is not a list of at least 2 responses", data.ranking_key));
    for (const Json& response : list) out.push_back(response);
    return out;
  }
  for (const std::string& key : {data.chosen_key, data.rejected_key}) {
    if (!row.contains(key)) {
      return bad_row(format("field \"{}\" is missing; a row has \"{}\" and \"{}\", or \"{}\"", key,
                            data.chosen_key, data.rejected_key, data.ranking_key));
    }
    out.push_back(row[key]);
  }
  return out;
}

Status check_response(const Json& value) {
  if (value.is_string() || data::is_conversation(value)) return {};
  return bad_row("a response is text or a list of messages with a text \"role\"");
}

}  // namespace

Result<std::vector<PairRow>> pairs_of(const Json& row, const spec::DataConfig& data) {
  NEAP_TRY_ASSIGN(const std::vector<Json> responses, responses_of(row, data));
  for (const Json& response : responses) NEAP_TRY(check_response(response));
  const Json margin = row.value(data.margin_key, Json());
  if (!margin.is_null() && !margin.is_number())
    return bad_row(format("field \"{}\" is not a number", data.margin_key));
  std::vector<PairRow> out;
  for (std::size_t better = 0; better < responses.size(); ++better) {
    for (std::size_t worse = better + 1; worse < responses.size(); ++worse) {
      PairRow pair{row.value(data.prompt_key, Json()), responses[better], responses[worse],
                   margin.is_null() ? 0 : margin.get<double>()};
      NEAP_TRY(split_prompt(pair));
      out.push_back(std::move(pair));
    }
  }
  return out;
}

}  // namespace neap::rlhf
