// Reads tokenizer.json and the additions of tokenizer_config.json.
#include <algorithm>
#include <limits>

#include "text/tokenizer/text_budget.h"
#include "text/tokenizer/tokenizer_state.h"

namespace neap::text {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;

TokenId checked_id(const Tree& value, std::string_view where, const std::string& what) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() < static_cast<std::uint64_t>(kMaxTokens)
                        : value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                              value.get<std::int64_t>() < kMaxTokens;
  if (!fits) corrupt(where, format("{} has the id {}", what, value.dump()));
  return value.get<std::int64_t>();
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

Tokenizer::State::State(std::string_view text, std::string_view where) {
  const Tree tokenizer = parse_tree(text, where);
  if (!tokenizer.is_object()) corrupt(where, "not a JSON object");
  const Tree& model = field(tokenizer, "model");
  if (!model.is_object()) corrupt(where, "has no object \"model\"");
  normalizer = Normalizer(field(tokenizer, "normalizer"), where);
  pre_tokenizer = PreTokenizer(field(tokenizer, "pre_tokenizer"), where);
  decoder = TokenDecoder(field(tokenizer, "decoder"), where);
  read_model(model, where);
  read_added(field(tokenizer, "added_tokens"), where);
  read_post_processor(field(tokenizer, "post_processor"), where);
}

void Tokenizer::State::read_model(const Tree& model, std::string_view where) {
  const std::string type = text_of(field(model, "type"));
  if (!type.empty() && type != "BPE")
    refuse(where, format("its model is {}; only BPE is supported", type));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(field(model, key)).empty()) refuse(where, format("{} is set", key));
  }
  const Tree& dropout = field(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) refuse(where, "dropout is set");
  read_vocabulary(field(model, "vocab"), where);
  const Tree& list = field(model, "merges");
  if (!list.is_array()) corrupt(where, "its model has no array \"merges\"");
  Bpe::Merges merges;
  merges.reserve(list.size());
  for (const Tree& merge : list) merges.push_back(merge_of(merge, where, merges.size()));
  BpeOptions options;
  options.byte_level = pre_tokenizer.byte_level();
  options.ignore_merges = flag(model, "ignore_merges");
  options.byte_fallback = flag(model, "byte_fallback");
  options.fuse_unk = flag(model, "fuse_unk");
  if (const Tree& unk = field(model, "unk_token"); unk.is_string())
    options.unk_token = unk.get<std::string>();
  bpe.emplace(vocabulary, merges, options, where);
}

void Tokenizer::State::read_vocabulary(const Tree& vocab, std::string_view where) {
  if (!vocab.is_object()) corrupt(where, "its model has no object \"vocab\"");
  std::int64_t largest = -1;
  for (const auto& [token, id] : vocab.items())
    largest = std::max(largest, checked_id(id, where, format("token \"{}\"", token)));
  // Ids may have gaps, but a file must not cause allocations far beyond its own size.
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
}

// `entry` has the token's text and flags.
void Tokenizer::State::add_token(const Tree& entry, const Tree& id, std::string_view where) {
  AddedToken token;
  token.content = entry.is_object() ? text_of(field(entry, "content")) : "";
  if (token.content.empty()) corrupt(where, "an added token has no content: " + entry.dump());
  token.id = checked_id(id, where, format("added token \"{}\"", token.content));
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
  const auto [known, fresh] = vocabulary.try_emplace(token.content, static_cast<Bpe::Id>(token.id));
  if (!fresh && known->second != token.id)
    corrupt(where, format("added token \"{}\" has the id {} and the id {}", token.content,
                          known->second, token.id));
  tokens[at] = token.content;
  special[at] = token.special;
  std::erase_if(added, [&](const AddedToken& other) { return other.id == token.id; });
  added.push_back(std::move(token));
}

void Tokenizer::State::read_added(const Tree& list, std::string_view where) {
  if (!list.is_null() && !list.is_array()) corrupt(where, "added_tokens is not an array");
  for (const Tree& entry : list)
    add_token(entry, entry.is_object() ? field(entry, "id") : Tree(), where);
  make_finders();
}

void Tokenizer::State::make_finders() {
  raw_finder = {};
  normalized_finder = {};
  std::size_t bytes = 0;
  for (const AddedToken& token : added) bytes += token.content.size();
  Budget budget = text_budget(bytes);
  for (const AddedToken& token : added) {
    if (token.normalized) {
      normalized_finder.add(normalizer.apply(token.content, budget), token);
    } else {
      raw_finder.add(token.content, token);
    }
  }
}

void Tokenizer::State::read_post_processor(const Tree& processor, std::string_view where) {
  if (processor.is_null()) return;
  const std::string type = type_of(processor, where, "post_processor");
  if (type == "ByteLevel") return;  // changes offsets only
  if (type == "Sequence") {
    for (const Tree& stage : stages_of(processor, "processors", where))
      read_post_processor(stage, where);
    return;
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    const auto id = [&](const char* key) {
      const Tree& pair = field(processor, key);
      if (!pair.is_array() || pair.size() != 2) corrupt(where, format("{} is not a pair", key));
      return checked_id(pair[1], where, key);
    };
    prefix.insert(prefix.begin(), id("cls"));
    suffix.push_back(id("sep"));
    return;
  }
  if (type != "TemplateProcessing")
    refuse(where, format("its post_processor is {}, which is not supported", type));
  read_template(processor, where);
}

void Tokenizer::State::read_template(const Tree& processor, std::string_view where) {
  int texts = 0;
  std::vector<TokenId> before, after;
  const Tree& single = field(processor, "single");
  if (!single.is_array()) corrupt(where, "the post-processor has no array \"single\"");
  for (const Tree& piece : single) {
    if (!piece.is_object())
      corrupt(where, "a piece of the post-processor's template is not an object");
    if (piece.contains("Sequence")) {
      ++texts;
      continue;
    }
    const std::string name = text_of(field(field(piece, "SpecialToken"), "id"));
    const Tree& ids = field(field(field(processor, "special_tokens"), name.c_str()), "ids");
    if (!ids.is_array())
      corrupt(where, format("the post-processor's template names \"{}\" without ids", name));
    for (const Tree& id : ids) {
      const TokenId known = checked_id(id, where, format("\"{}\"", name));
      if (static_cast<std::size_t>(known) >= tokens.size())
        corrupt(where,
                format("the post-processor's \"{}\" has the id {} of no token", name, known));
      (texts > 0 ? after : before).push_back(known);
    }
  }
  if (texts != 1)
    corrupt(where, format("the post-processor's template has the text {} times", texts));
  prefix.insert(prefix.begin(), before.begin(), before.end());
  suffix.insert(suffix.end(), after.begin(), after.end());
}

std::optional<TokenId> Tokenizer::State::id_of(std::string_view token) const {
  const auto it = vocabulary.find(token);
  return it == vocabulary.end() ? std::nullopt : std::optional<TokenId>(it->second);
}

void Tokenizer::State::read_config(const Tree& json, std::string_view where) {
  if (!json.is_object()) corrupt(where, "not a JSON object");
  if (const Tree& list = field(json, "added_tokens_decoder"); list.is_object()) {
    // transformers uses the flags from here.
    for (const auto& [id, entry] : list.items()) {
      const bool number =
          !id.empty() && id.size() < 10 &&
          std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!number) corrupt(where, format("added_tokens_decoder has the id \"{}\"", id));
      add_token(entry, Tree(std::stoll(id)), where);
    }
    make_finders();
  }
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
  if (chat.is_array()) {  // several templates, by name
    for (const Tree& entry : chat) {
      if (entry.is_object() && text_of(field(entry, "name")) == "default")
        chat_template = text_of(field(entry, "template"));
    }
  }
  read_begin_and_end(json, where);
}

// transformers' classes for Llama and Gemma rebuild the post-processor from these two keys.
void Tokenizer::State::read_begin_and_end(const Tree& json, std::string_view where) {
  std::string name = text_of(field(json, "tokenizer_class"));
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name != "LlamaTokenizer" && name != "CodeLlamaTokenizer" && name != "GemmaTokenizer") return;
  const Tree& begin = field(json, "add_bos_token");
  const Tree& end = field(json, "add_eos_token");
  if (!begin.is_boolean() && !end.is_boolean()) return;
  prefix.clear();
  suffix.clear();
  const auto add = [&](bool wanted, const std::optional<TokenId>& id, const char* key,
                       std::vector<TokenId>& ids) {
    if (!wanted) return;
    if (!id) corrupt(where, format("add_{0} is true, but there is no {0}", key));
    ids.push_back(*id);
  };
  add(flag(json, "add_bos_token", true), bos, "bos_token", prefix);
  add(flag(json, "add_eos_token"), eos, "eos_token", suffix);
}

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view where) {
  try {
    Tokenizer t;
    t.state_ = std::make_shared<State>(text, where);
    return t;
  } catch (const Tree::exception& e) {  // a value has the wrong type
    corrupt(where, e.what());
  }
}

}  // namespace neap::text
