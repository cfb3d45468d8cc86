// Encodes and decodes texts for compare.py, or times encoding.
//
//   encode_lines tokenizer.json              JSON strings, one a line, from stdin; a line
//                                            [ids, text of the ids, the same by parts] for each
//   encode_lines tokenizer.json FILE COUNT   encodes FILE in texts of some 2 kB, COUNT times; prints MB/s
//                                            of user time
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace {

using neap::text::StreamDecoder;
using neap::text::TokenId;
using neap::text::Tokenizer;

std::string read(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

double user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
}

int time_encoding(const Tokenizer& tokenizer, const std::string& text, int count) {
  const double start = user_seconds();
  std::size_t ids = 0;
  for (int i = 0; i < count; ++i) {
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t n = std::min(rest.find('\n', 2000), rest.size() - 1) + 1;
      ids += tokenizer.encode(rest.substr(0, n)).size();
      rest.remove_prefix(n);
    }
  }
  const double seconds = user_seconds() - start;
  const double bytes = static_cast<double>(text.size()) * count;
  std::printf("%.1f MB/s of user time, %zu ids, %.2f bytes an id\n", bytes / 1e6 / seconds, ids,
              bytes / static_cast<double>(ids));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) return 2;
  const Tokenizer tokenizer = Tokenizer::from_json(read(argv[1]), argv[1]);
  if (argc == 4) return time_encoding(tokenizer, read(argv[2]), std::atoi(argv[3]));
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const std::vector<TokenId> ids = tokenizer.encode(text, true);
    StreamDecoder stream(tokenizer, false);
    std::string by_parts;
    for (const TokenId id : ids) by_parts += stream.push(id);
    by_parts += stream.finish();
    std::cout << nlohmann::json{ids, tokenizer.decode(ids, true), by_parts}.dump() << '\n';
  }
  return 0;
}
