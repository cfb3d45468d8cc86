// Reads the tokenizer files of a folder.
#include <algorithm>

#include "base/file.h"
#include "text/tokenizer/tokenizer_state.h"

namespace neap::text {
namespace {

namespace fs = std::filesystem;

Tree read_json(const fs::path& path) {
  return parse_tree(value_or_throw(read_file(path, read_limits::kTokenizerFile)), path.string());
}
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// vocab.json and merges.txt do not describe the other stages. Use GPT-2's, with the special tokens
// that the configuration names.
Tree document_of_vocabulary(const fs::path& folder, const Tree& config) {
  const fs::path vocab_path = folder / "vocab.json";
  Tree vocab = read_json(vocab_path);
  if (!vocab.is_object()) corrupt(vocab_path.string(), "not a JSON object");
  const std::string text =
      value_or_throw(read_file(folder / "merges.txt", read_limits::kTokenizerFile));
  Tree merges = Tree::array();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool version = at == 0 && line.rfind("#version", 0) == 0;
    if (!line.empty() && !version) merges.push_back(line);
    at = end + 1;
  }
  Tree added = Tree::array();
  const auto add = [&](const std::string& token) {
    const bool known = std::any_of(added.begin(), added.end(),
                                   [&](const Tree& a) { return a["content"] == token; });
    if (token.empty() || known || !vocab.contains(token)) return;
    added.push_back({{"id", vocab[token]},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
    add(token_text(field(config, key)));
  add("<|endoftext|>");
  Tree processor = {{"type", "ByteLevel"},
                    {"add_prefix_space", true},
                    {"trim_offsets", false},
                    {"use_regex", true}};
  const std::string bos = token_text(field(config, "bos_token"));
  if (flag(config, "add_bos_token") && vocab.contains(bos)) {
    processor = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", Tree::array()},
        {"special_tokens", {{bos, {{"id", bos}, {"ids", {vocab[bos]}}, {"tokens", {bos}}}}}}};
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", flag(config, "add_prefix_space")},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"post_processor", std::move(processor)},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}}}};
}

}  // namespace

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  const fs::path config_file = folder / "tokenizer_config.json";
  const fs::path map_file = folder / "special_tokens_map.json";
  Tree config = is_there(config_file) ? read_json(config_file) : Tree::object();
  if (is_there(map_file)) {
    const Tree map = read_json(map_file);
    for (const auto& [key, value] : map.items())
      if (!config.contains(key) || config[key].is_null()) config[key] = value;
  }
  if (!is_there(file) && !is_there(folder / "vocab.json"))
    throw Error(ErrorCode::kNotFound, format("{} has neither tokenizer.json nor vocab.json with "
                                             "merges.txt",
                                             folder.string()));
  Tokenizer t =
      is_there(file)
          ? from_json(value_or_throw(read_file(file, read_limits::kTokenizerFile)), file.string())
          : from_json(document_of_vocabulary(folder, config).dump(),
                      (folder / "vocab.json").string());
  State& state = *t.state_;
  if (!config.empty()) state.read_config(config, config_file.string());
  if (const fs::path chat = folder / "chat_template.jinja"; is_there(chat))
    state.chat_template = value_or_throw(read_file(chat, read_limits::kTemplate));
  if (!state.eos) state.eos = state.id_of("<|endoftext|>");
  return t;
}

}  // namespace neap::text
