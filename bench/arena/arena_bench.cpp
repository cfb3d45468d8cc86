// bench_arena: the measurements of `neap bench` as JSON lines, for bench/results: each line with its environment.
//
// usage: bench_arena [--device cuda|cpu] [--size 64GiB] [--cycles N] [--only CASE]
//                    [--hook libneap_hook.so] [--disk-folder DIR] [--revision TEXT]
#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/format.h"
#include "bench/bench.h"

namespace {

using namespace neap;

int fail(const Status& status) {
  std::fprintf(stderr, "bench_arena: %s\n", status.message().c_str());
  return 1;
}

Status measure(bench::Settings settings, const std::map<std::string, std::string>& words,
               const std::string& command) {
  Json environment;
  const auto print = [&](const bench::Row& row) {
    Json line = {{"schema", 2}};
    line.update(to_json(row));
    line["environment"] = environment;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    std::fprintf(stderr, "%-24s %-32s %10.3f %s (%.3f to %.3f, limit %.3f)\n", row.name.c_str(),
                 row.what.c_str(), row.measured.median(), row.unit.c_str(), row.measured.at(0),
                 row.measured.at(1), row.limit.median());
  };
  NEAP_TRY_ASSIGN(auto bench, bench::Bench::make(std::move(settings), print));
  environment = bench.environment();
  environment["revision"] = words.contains("--revision") ? words.at("--revision") : "unknown";
  environment["command"] = command;
  NEAP_TRY_ASSIGN(const auto wanted, bench::wanted_cases(bench));
  Status first;
  for (const bench::Case* one : wanted) {
    Status status = one->run(bench);
    if (status.ok()) continue;
    std::fprintf(stderr, "bench_arena: %s: %s\n", std::string(one->name).c_str(),
                 status.message().c_str());
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace

int main(int count, char** arguments) {
  std::map<std::string, std::string> words;
  std::string command = arguments[0];
  for (int i = 1; i < count; i += 2) {
    if (i + 1 == count) {
      std::fprintf(stderr, "bench_arena: %s needs a value\n", arguments[i]);
      return 2;
    }
    words[arguments[i]] = arguments[i + 1];
    command += format(" {} {}", arguments[i], arguments[i + 1]);
  }
  bench::Settings settings;
  const std::map<std::string, std::function<void(const std::string&)>> known = {
      {"--device", [&](const std::string& text) { settings.device = text; }},
      {"--size",
       [&](const std::string& text) {
         const auto size = parse_bytes(text);
         settings.size = size.ok() ? *size : Bytes(0);
       }},
      {"--cycles", [&](const std::string& text) { settings.cycles = std::atoi(text.c_str()); }},
      {"--only", [&](const std::string& text) { settings.filter = {text}; }},
      {"--hook", [&](const std::string& text) { settings.hook_library = text; }},
      {"--disk-folder", [&](const std::string& text) { settings.disk_folder = text; }},
      {"--revision", [](const std::string&) {}},
      {"--import-child", [](const std::string&) {}}};
  for (const auto& [word, value] : words) {
    const auto it = known.find(word);
    if (it == known.end()) {
      std::fprintf(stderr, "bench_arena: unknown option %s\n", word.c_str());
      return 2;
    }
    it->second(value);
  }
  settings.import_child = {"/proc/self/exe"};
  const Status status =
      words.contains("--import-child")
          ? bench::import_child(settings.device, std::atoi(words["--import-child"].c_str()))
          : measure(std::move(settings), words, command);
  return status.ok() ? 0 : fail(status);
}
