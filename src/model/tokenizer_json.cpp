// Reading tokenizer.json and its companions, and writing them.
#include <algorithm>
#include <limits>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "model/tokenizer_state.h"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, format("{}: {}", where, what));
}
[[noreturn]] void corrupt(std::string_view where, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, format("{}: {}", where, what));
}

// A field that may be absent; null counts as absent.
const Tree& field(const Tree& object, const char* key) {
  static const Tree null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}
bool flag(const Tree& object, const char* key) {
  const Tree& v = field(object, key);
  return v.is_boolean() && v.get<bool>();
}
std::string text_of(const Tree& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}
// "<s>" or {"content": "<s>", ...}.
std::string token_text(const Tree& value) {
  return value.is_object() ? text_of(field(value, "content")) : text_of(value);
}
TokenId checked_id(const Tree& value, std::string_view where, const std::string& what) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
      value.get<std::int64_t>() >= kMaxTokens)
    corrupt(where, format("{} has the id {}", what, value.dump()));
  return value.get<std::int64_t>();
}

// No tokenizer nests deep; a file that does would end as recursion in the readers below.
void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (depth > 64) corrupt(where, "nests deeper than 64 levels");
  }
}

Tree parse(std::string_view text, std::string_view where) {
  check_depth(text, where);
  try {
    return Tree::parse(text.begin(), text.end());
  } catch (const Tree::parse_error& e) {
    corrupt(where, format("not valid JSON at byte {}", e.byte));
  }
}
Tree read_json(const fs::path& path) {
  return parse(value_or_throw(read_file(path, 1_GiB)), path.string());
}
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::pair<std::string, std::string> merge_of(const Tree& value, std::string_view where,
                                             std::size_t rank) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string())
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  const std::string text = text_of(value);
  const auto space = text.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string::npos)
    corrupt(where, format("merge {} is {}, not two tokens", rank, value.dump()));
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

Tokenizer::State::State(std::string_view text, std::string_view where) : document(text) {
  const Tree tokenizer = parse(text, where);
  if (!tokenizer.is_object()) corrupt(where, "not a JSON object");
  const Tree& model = field(tokenizer, "model");
  if (!model.is_object()) corrupt(where, "has no object \"model\"");
  read_normalizer(field(tokenizer, "normalizer"), where);
  pre_tokenizer = PreTokenizer(field(tokenizer, "pre_tokenizer"), where);
  if (!pre_tokenizer.byte_level())
    refuse(where, "its pre_tokenizer has no ByteLevel; only byte-level tokenizers are supported");
  check_decoder(field(tokenizer, "decoder"), where);
  read_model(model, where);
  read_added(field(tokenizer, "added_tokens"), where);
  bytes.reserve(tokens.size());
  for (const std::string& token : tokens) bytes.push_back(bytes_of_token(token));
  read_post_processor(field(tokenizer, "post_processor"), where);
}

void Tokenizer::State::read_model(const Tree& model, std::string_view where) {
  const std::string type = text_of(field(model, "type"));
  if (!type.empty() && type != "BPE")
    refuse(where, format("its model is {}; only BPE is supported", type));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(field(model, key)).empty()) refuse(where, format("{} is set", key));
  }
  if (flag(model, "byte_fallback")) refuse(where, "byte_fallback is set");
  const Tree& dropout = field(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) refuse(where, "dropout is set");
  const Tree& vocab = field(model, "vocab");
  if (!vocab.is_object()) corrupt(where, "its model has no object \"vocab\"");
  std::int64_t largest = -1;
  for (const auto& [token, id] : vocab.items())
    largest = std::max(largest, checked_id(id, where, format("token \"{}\"", token)));
  // Ids may have gaps, but a file cannot ask for memory far beyond its own size.
  if (largest >= static_cast<std::int64_t>(vocab.size()) * 16 + 4096)
    corrupt(where, format("{} tokens have ids up to {}", vocab.size(), largest));
  tokens.resize(static_cast<std::size_t>(largest + 1));
  special.resize(tokens.size());
  vocabulary.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    const auto at = id.get<std::size_t>();
    if (!vocabulary.emplace(token, static_cast<Bpe::Id>(at)).second || !tokens[at].empty())
      corrupt(where, format("token \"{}\" or its id {} is there twice", token, at));
    tokens[at] = token;
  }
  const Tree& list = field(model, "merges");
  if (!list.is_array()) corrupt(where, "its model has no array \"merges\"");
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(list.size());
  for (const Tree& merge : list) merges.push_back(merge_of(merge, where, merges.size()));
  bpe.emplace(vocabulary, merges, flag(model, "ignore_merges"), where);
}

void Tokenizer::State::read_normalizer(const Tree& normalizer, std::string_view where) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.is_object() ? text_of(field(normalizer, "type")) : "";
  if (type == "Sequence") {
    for (const Tree& stage : field(normalizer, "normalizers")) read_normalizer(stage, where);
    return;
  }
  const std::map<std::string, utf8::Form> known = {{"NFC", utf8::Form::kNfc},
                                                   {"NFD", utf8::Form::kNfd},
                                                   {"NFKC", utf8::Form::kNfkc},
                                                   {"NFKD", utf8::Form::kNfkd}};
  const auto it = known.find(type);
  if (it == known.end())
    refuse(where, format("its normalizer is {}; supported are NFC, NFD, NFKC, NFKD",
                         type.empty() ? normalizer.dump().substr(0, 80) : type));
  forms.push_back(it->second);
}

void Tokenizer::State::read_added(const Tree& list, std::string_view where) {
  if (list.is_null()) return;
  if (!list.is_array()) corrupt(where, "added_tokens is not an array");
  for (const Tree& entry : list) {
    AddedToken token;
    token.content = entry.is_object() ? text_of(field(entry, "content")) : "";
    if (token.content.empty()) corrupt(where, "an added token has no content: " + entry.dump());
    token.id = checked_id(field(entry, "id"), where, format("added token \"{}\"", token.content));
    token.special = flag(entry, "special");
    token.normalized = flag(entry, "normalized");
    token.single_word = flag(entry, "single_word");
    token.lstrip = flag(entry, "lstrip");
    token.rstrip = flag(entry, "rstrip");
    const auto at = static_cast<std::size_t>(token.id);
    if (at >= tokens.size() + 65536)
      corrupt(where, format("added token \"{}\" has the id {} behind {} tokens", token.content,
                            token.id, tokens.size()));
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (special.size() < tokens.size()) special.resize(tokens.size());
    if (!tokens[at].empty() && tokens[at] != token.content)
      corrupt(where, format("added token \"{}\" has the id {} of \"{}\"", token.content, token.id,
                            tokens[at]));
    tokens[at] = token.content;
    special[at] = token.special;
    vocabulary[token.content] = static_cast<Bpe::Id>(token.id);
    if (token.normalized && !forms.empty()) {
      normalized_finder.add(normalized(token.content), token);
    } else {
      raw_finder.add(token.content, token);
    }
    added.push_back(std::move(token));
  }
}

void Tokenizer::State::read_post_processor(const Tree& processor, std::string_view where) {
  if (processor.is_null()) return;
  const std::string type = processor.is_object() ? text_of(field(processor, "type")) : "";
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Tree& stage : field(processor, "processors")) read_post_processor(stage, where);
    return;
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    const auto id = [&](const char* key) {
      const Tree& pair = field(processor, key);
      if (!pair.is_array() || pair.size() != 2) corrupt(where, format("{} is no pair", key));
      return checked_id(pair[1], where, key);
    };
    prefix.insert(prefix.begin(), id("cls"));
    suffix.push_back(id("sep"));
    return;
  }
  if (type != "TemplateProcessing")
    refuse(where, format("its post_processor is \"{}\", which is not supported", type));
  bool behind = false;
  std::vector<TokenId> before, after;
  for (const Tree& piece : field(processor, "single")) {
    if (!piece.is_object()) corrupt(where, "a piece of the post-processor's template is no object");
    if (piece.contains("Sequence")) {
      behind = true;
      continue;
    }
    const std::string name = text_of(field(field(piece, "SpecialToken"), "id"));
    const Tree& ids = field(field(field(processor, "special_tokens"), name.c_str()), "ids");
    if (!ids.is_array())
      corrupt(where, format("the post-processor's template names \"{}\" without ids", name));
    for (const Tree& id : ids) (behind ? after : before).push_back(checked_id(id, where, name));
  }
  prefix.insert(prefix.begin(), before.begin(), before.end());
  suffix.insert(suffix.end(), after.begin(), after.end());
}

void Tokenizer::State::check_decoder(const Tree& decoder, std::string_view where) {
  if (decoder.is_null()) return;
  const std::string type = decoder.is_object() ? text_of(field(decoder, "type")) : "";
  if (type == "Sequence") {
    for (const Tree& stage : field(decoder, "decoders")) check_decoder(stage, where);
  } else if (type != "ByteLevel") {
    refuse(where, format("its decoder is \"{}\"; only ByteLevel is supported", type));
  }
}

void Tokenizer::State::read_config(Tree json, std::string_view where) {
  if (!json.is_object()) corrupt(where, "not a JSON object");
  const auto role = [&](const char* key, std::optional<TokenId>& id) {
    const std::string text = token_text(field(json, key));
    if (text.empty()) return;
    id = id_of(text);
    if (!id) corrupt(where, format("{} is \"{}\", which is not in the vocabulary", key, text));
  };
  role("bos_token", bos);
  role("eos_token", eos);
  role("pad_token", pad);
  const Tree& chat = field(json, "chat_template");
  if (chat.is_string()) chat_template = chat.get<std::string>();
  if (chat.is_array()) {  // several, by name
    for (const Tree& entry : chat) {
      if (entry.is_object() && text_of(field(entry, "name")) == "default")
        chat_template = text_of(field(entry, "template"));
    }
  }
  config = std::move(json);
}

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view where) {
  try {
    Tokenizer t;
    t.state_ = std::make_shared<State>(text, where);
    return t;
  } catch (const Tree::exception& e) {  // a value of another type than its field has
    corrupt(where, e.what());
  }
}

namespace {

// vocab.json and merges.txt say nothing of the rest: GPT-2's way, with the special tokens that the
// configuration names.
Tree document_of_vocabulary(const fs::path& folder, const Tree& config) {
  const fs::path vocab_path = folder / "vocab.json";
  Tree vocab = read_json(vocab_path);
  if (!vocab.is_object()) corrupt(vocab_path.string(), "not a JSON object");
  const std::string text = value_or_throw(read_file(folder / "merges.txt", 1_GiB));
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
  Tokenizer t = is_there(file) ? from_json(value_or_throw(read_file(file, 1_GiB)), file.string())
                               : from_json(document_of_vocabulary(folder, config).dump(),
                                           (folder / "vocab.json").string());
  State& state = *t.state_;
  if (!config.empty()) state.read_config(std::move(config), config_file.string());
  if (const fs::path chat = folder / "chat_template.jinja"; is_there(chat))
    state.chat_template = value_or_throw(read_file(chat, 16_MiB));
  if (!state.eos) state.eos = state.id_of("<|endoftext|>");
  return t;
}

const std::string& Tokenizer::to_json() const {
  return state_->document;
}

void Tokenizer::save(const fs::path& folder) const {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), failure.message()));
  throw_if_error(write_file_atomic(folder / "tokenizer.json", state_->document));
  Tree config = state_->config;
  if (!config.contains("tokenizer_class")) config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const auto role = [&](const char* key, std::optional<TokenId> id) {
    if (id) {
      config[key] = token_of(*id);
    } else {
      config.erase(key);
    }
  };
  role("bos_token", state_->bos);
  role("eos_token", state_->eos);
  role("pad_token", state_->pad);
  if (!state_->chat_template.empty()) config["chat_template"] = state_->chat_template;
  throw_if_error(write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n"));
}

}  // namespace neap::model
