// Snapshots of every protocol and age against what make_snapshots.py says is in them.
#include <gtest/gtest.h>
#include <zstd.h>

#include <sstream>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "trace/reader.h"

namespace neap::trace {
namespace {

const std::filesystem::path kFolder = NEAP_SOURCE_DIR "/tests/golden/trace";

Json stack_json(const Recording& r, std::uint32_t id) {
  Json lines = Json::array();
  for (const std::uint32_t f : r.stacks.stack(id)) {
    const Frame& frame = r.stacks.frame(f);
    lines.push_back(
        format("{}@{}:{}", r.names.name(frame.function), r.names.name(frame.file), frame.line));
  }
  return lines;
}

Json pool_json(const Recording& r, std::uint8_t index) {
  return Json::array({r.pools.at(index).first, r.pools.at(index).second});
}

/// The form of the committed expectations.
Json to_json(const Recording& r) {
  Json devices = Json::array();
  for (const DeviceRecording& d : r.devices) {
    Json segments = Json::array();
    for (const Segment& s : d.segments) {
      Json blocks = Json::array();
      for (const Block& b : d.blocks_of(s))
        blocks.push_back(Json::array(
            {b.address, b.size, b.requested, static_cast<int>(b.state), stack_json(r, b.stack)}));
      segments.push_back(Json::array({s.address, s.size, s.stream, pool_json(r, s.pool),
                                      s.small_pool, s.expandable, stack_json(r, s.stack), blocks}));
    }
    Json events = Json::array();
    for (const Event& e : d.events) {
      EXPECT_EQ(e.device, d.ordinal);
      events.push_back(Json::array(
          {static_cast<int>(e.kind), e.time_ns, e.address, e.size, e.stream, pool_json(r, e.pool),
           names_a_stack(e.kind) ? stack_json(r, e.name) : Json(r.names.name(e.name))}));
    }
    devices.push_back({{"ordinal", d.ordinal},
                       {"has_times", d.has_times},
                       {"overflowed", d.overflowed},
                       {"segments", segments},
                       {"events", events}});
  }
  Json settings;
  if (r.settings.present) {
    settings = {{"conf", r.settings.conf},
                {"max_split_size", r.settings.max_split_size},
                {"gc", r.settings.garbage_collection_threshold},
                {"expandable", r.settings.expandable_segments},
                {"roundup", r.settings.roundup_power2_divisions},
                {"max_entries", r.settings.trace_alloc_max_entries}};
  }
  return {{"start_unix_ns", r.start_unix_ns},
          {"devices", devices},
          {"settings", settings},
          {"warnings", r.warnings.size()}};
}

Json expected(const std::string& name) {
  const std::filesystem::path path = kFolder / (name + ".json");
  return value_or_throw(parse_json(value_or_throw(read_file(path)), path.string()));
}

class GoldenSnapshot : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSnapshot, HoldsWhatItsMakerSays) {
  const std::string file = GetParam();
  const auto r = read(kFolder / file);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->source, Source::kTorchSnapshot);
  const Json want = expected(file.substr(0, file.find('.')));
  const Json got = to_json(*r);
  for (const char* part : {"start_unix_ns", "settings", "warnings"})
    EXPECT_EQ(got.at(part).dump(), want.at(part).dump()) << part;
  ASSERT_EQ(got.at("devices").size(), want.at("devices").size());
  for (std::size_t i = 0; i < want.at("devices").size(); ++i) {
    for (const auto& [part, value] : want.at("devices").at(i).items())
      EXPECT_EQ(got.at("devices").at(i).at(part).dump(), value.dump()) << part << " of " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenSnapshot,
                         ::testing::Values("modern.p2.pickle", "modern.p3.pickle",
                                           "modern.p4.pickle", "modern.p5.pickle",
                                           "modern.fast.pickle", "modern.cpp.pickle",
                                           "modern.p4.pickle.gz", "tuples.p4.pickle",
                                           "tuples.cpp.pickle", "sparse.p2.pickle",
                                           "bare_list.p3.pickle"));

TEST(Golden, LongRunSharesOneStack) {
  const Recording r = value_or_throw(read(kFolder / "long_run.p5.pickle.gz"));
  ASSERT_EQ(r.event_count(), 2345U);
  EXPECT_EQ(r.stacks.size(), 2U) << "none and the one";
  for (std::size_t i = 0; i < 2345; ++i) {
    const Event& e = r.devices[0].events[i];
    ASSERT_EQ(e.kind, i % 2 == 0 ? EventKind::kAlloc : EventKind::kFreeCompleted);
    ASSERT_EQ(e.address, (1ULL << 40) + 512 * (i / 2));
    ASSERT_EQ(e.size, 300 + i / 2);
    ASSERT_EQ(e.time_ns, i * 1000);
    ASSERT_EQ(e.name, 1U);
  }
}

std::string zstd(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 3));
  return packed;
}
std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST(Golden, ZstdAndSeveralMembers) {
  const std::string plain = value_or_throw(read_file(kFolder / "modern.p4.pickle"));
  const std::string want = to_json(value_or_throw(read_bytes(bytes_of(plain), "plain"))).dump();
  const std::string whole = zstd(plain);
  EXPECT_EQ(to_json(value_or_throw(read_bytes(bytes_of(whole), "zstd"))).dump(), want);
  const std::string two = zstd(plain.substr(0, 1000)) + zstd(plain.substr(1000));
  EXPECT_EQ(to_json(value_or_throw(read_bytes(bytes_of(two), "two frames"))).dump(), want);
}

TEST(Golden, EveryCutIsOneClearError) {
  for (const char* file : {"modern.p4.pickle", "modern.cpp.pickle", "modern.p4.pickle.gz"}) {
    const std::string whole = value_or_throw(read_file(kFolder / file));
    for (std::size_t n = 2; n + 1 < whole.size(); ++n) {
      const std::string part = whole.substr(0, n);
      const auto r = read_bytes(bytes_of(part), file);
      if (r.ok()) {
        // gzip's trailer comes after the last instruction of the pickle.
        EXPECT_GE(n + 16, whole.size()) << file << " cut at " << n;
        continue;
      }
      EXPECT_NE(r.status().message().find("cut short"), std::string::npos)
          << n << ": " << r.status().message();
    }
  }
  const std::string packed = zstd(value_or_throw(read_file(kFolder / "modern.p4.pickle")));
  const auto r = read_bytes(bytes_of(packed).first(packed.size() / 2), "half.zst");
  EXPECT_NE(r.status().message().find("cut short"), std::string::npos) << r.status().message();
}

TEST(Golden, DecompressionBombsAreStopped) {
  // A pickle that pushes and pops None for ever, packed 30000 to 1.
  std::string text("\x80\x04", 2);
  for (int i = 0; i < 100'000'000; i += 2) text += "N0";
  const std::string bomb = zstd(text);
  ASSERT_LT(bomb.size(), 64U << 10);
  const auto r = read_bytes(bytes_of(bomb), "bomb.zst");
  EXPECT_EQ(r.status().code(), ErrorCode::kCorrupt);
  EXPECT_NE(r.status().message().find("bomb"), std::string::npos) << r.status().message();
}

TEST(Golden, DamagedPackingIsNamed) {
  std::string packed = value_or_throw(read_file(kFolder / "modern.p4.pickle.gz"));
  packed[300] = static_cast<char>(packed[300] ^ 0x55);
  const auto r = read_bytes(bytes_of(packed), "damaged.gz");
  EXPECT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find("damaged.gz"), std::string::npos) << r.status().message();
}

/// Recordings from a GPU: the final segments and the events must add up to what PyTorch measured.
TEST(Golden, RecordedOnAGpu) {
  const std::filesystem::path folder = NEAP_SOURCE_DIR "/tests/data/gpu-snapshots";
  std::istringstream lines(value_or_throw(read_file(folder / "measured.jsonl")));
  int files = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json said = value_or_throw(parse_json(line, "measured.jsonl"));
    const auto name = said.at("name").get<std::string>();
    const auto r = read(folder / (name + ".pickle.gz"));
    ASSERT_TRUE(r.ok()) << r.status().message();
    ++files;
    EXPECT_TRUE(r->warnings.empty()) << name << ": " << r->warnings.front();
    ASSERT_EQ(r->devices.size(), 1U) << name;
    const DeviceRecording& d = r->devices[0];
    EXPECT_EQ(r->settings.conf, said.at("conf").get<std::string>()) << name;
    EXPECT_TRUE(d.has_times);
    std::uint64_t reserved = 0;
    std::uint64_t allocated = 0;
    for (const Segment& s : d.segments) {
      reserved += s.size;
      std::uint64_t sum = 0;
      for (const Block& b : d.blocks_of(s)) {
        sum += b.size;
        allocated += b.state == BlockState::kAllocated ? b.size : 0;
      }
      EXPECT_EQ(sum, s.size) << name << ": blocks fill their segment";
    }
    EXPECT_EQ(reserved, said.at("end_reserved").get<std::uint64_t>()) << name;
    EXPECT_EQ(allocated, said.at("end_allocated").get<std::uint64_t>()) << name;
    std::uint64_t marks = 0;
    std::uint64_t with_stack = 0;
    for (const Event& e : d.events) {
      marks += names_a_stack(e.kind) ? 0U : 1U;
      with_stack += names_a_stack(e.kind) && e.name != 0 ? 1U : 0U;
    }
    EXPECT_EQ(d.events.size() - marks, said.at("events").get<std::uint64_t>()) << name;
    EXPECT_EQ(with_stack > 0, name == "stacks") << name;
    EXPECT_TRUE(marks > 0 || name != "phases") << name;
  }
  EXPECT_GE(files, 10);
}

}  // namespace
}  // namespace neap::trace
