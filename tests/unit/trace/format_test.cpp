#include "trace/wire_format.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "trace/reader.h"

namespace neap::trace {
namespace {

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST(TraceFormat, NumbersSurvive) {
  const std::uint64_t numbers[] = {0, 1, 127, 128, 300, 1ULL << 32, ~0ULL - 1, ~0ULL};
  wire::Encoder out;
  for (const std::uint64_t n : numbers) {
    out.number(n);
    out.difference(n);
    out.difference(0 - n);
  }
  out.real(-0.25);
  out.text("tag");
  wire::Decoder in(out.bytes());
  for (const std::uint64_t n : numbers) {
    EXPECT_EQ(in.number(), n);
    EXPECT_EQ(in.difference(), n);
    EXPECT_EQ(in.difference(), 0 - n);
  }
  EXPECT_EQ(in.real(), -0.25);
  EXPECT_EQ(in.text(), "tag");
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(in.left(), 0U);
}

TEST(TraceFormat, NearNumbersTakeOneByte) {
  wire::Encoder out;
  out.difference(static_cast<std::uint64_t>(-3));
  out.difference(63);
  EXPECT_EQ(out.bytes().size(), 2U);
}

TEST(TraceFormat, DecoderStopsAtTheEnd) {
  const std::vector<std::uint8_t> endless(20, 0xFF);
  wire::Decoder in(endless);
  EXPECT_EQ(in.number(), 0U);
  EXPECT_FALSE(in.ok());
  const std::vector<std::uint8_t> claims_much{0xFF, 0xFF, 0xFF, 0x7F, 'x'};
  wire::Decoder text(claims_much);
  EXPECT_EQ(text.text(), "");
  EXPECT_FALSE(text.ok());
}

TEST(TraceFormat, TextMayNotReachPastTheEnd) {
  // The length itself counted as room for the text once.
  const std::vector<std::uint8_t> one_short{5, 'a', 'b', 'c', 'd'};
  wire::Decoder in(one_short);
  EXPECT_EQ(in.text(), "");
  EXPECT_FALSE(in.ok());
  const std::vector<std::uint8_t> whole{4, 'a', 'b', 'c', 'd'};
  wire::Decoder fits(whole);
  EXPECT_EQ(fits.text(), "abcd");
  EXPECT_TRUE(fits.ok());
}

struct TempFile {
  std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                               ("neap_trace_" + std::to_string(::getpid()) + "_" +
                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
  ~TempFile() { std::filesystem::remove(path); }
};

// A full pipe, whose writer is interrupted: nothing is lost.
TEST(TraceFormat, ASignalDuringAWriteIsNoFailure) {
  struct sigaction note = {}, before = {};
  note.sa_handler = [](int) {};  // without SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &note, &before), 0);
  std::vector<std::uint8_t> payload(1 << 20);
  for (std::size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<std::uint8_t>(mix(i));  // more than a pipe holds, packed too
  const auto write_to = [&](const std::filesystem::path& path) {
    wire::BlockFile file;
    EXPECT_TRUE(file.create(path).ok());
    const Status status = file.append(wire::BlockType::kMetadata, payload);
    EXPECT_TRUE(status.ok()) << status.message();
    file.abandon();
  };
  const TempFile temp;
  write_to(temp.path);
  const std::string whole = read_file(temp.path).value();
  std::filesystem::remove(temp.path);
  ASSERT_EQ(::mkfifo(temp.path.c_str(), 0600), 0);
  std::thread writer([&] { write_to(temp.path); });
  const int pipe = ::open(temp.path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(pipe, 0);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::pthread_kill(writer.native_handle(), SIGUSR1);
  }
  std::string read;
  std::array<char, 65536> piece{};
  for (ssize_t n = 0; (n = ::read(pipe, piece.data(), piece.size())) > 0;)
    read.append(piece.data(), static_cast<std::size_t>(n));
  writer.join();
  ::close(pipe);
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  EXPECT_TRUE(read == whole) << read.size() << " of " << whole.size() << " bytes";
}

std::string small_trace(const std::filesystem::path& path) {
  wire::BlockFile file;
  EXPECT_TRUE(file.create(path).ok());
  wire::Encoder out;
  out.byte(2);
  out.number(1000);
  EXPECT_TRUE(file.append(wire::BlockType::kStart, out.bytes()).ok());
  std::vector<Event> events(1000);
  for (std::size_t i = 0; i < events.size(); ++i) {
    events[i].time_ns = i * 10;
    events[i].address = 0x7F0000000000ULL + (i % 7) * 512;
    events[i].size = i;
    events[i].kind = EventKind::kAlloc;
    events[i].device = static_cast<std::uint16_t>(i % 2);
  }
  out.clear();
  wire::encode_events(events, out);
  EXPECT_TRUE(file.append(wire::BlockType::kEvents, out.bytes()).ok());
  out.clear();
  out.number(events.size());
  out.number(0);
  EXPECT_TRUE(file.append(wire::BlockType::kEnd, out.bytes()).ok());
  EXPECT_TRUE(file.close().ok());
  return read_file(path).value();
}

TEST(TraceFormat, EveryCutIsReportedAndKeepsWholeBlocks) {
  const TempFile temp;
  const std::string whole = small_trace(temp.path);
  const auto full = read_bytes(bytes_of(whole), "whole");
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_EQ(full->devices.size(), 2U);
  EXPECT_EQ(full->event_count(), 1000U);
  EXPECT_TRUE(full->truncated.empty());
  for (std::size_t n = wire::kFileHeaderSize; n < whole.size(); ++n) {
    const std::string part = whole.substr(0, n);
    const auto cut = read_bytes(bytes_of(part), "cut");
    ASSERT_TRUE(cut.ok()) << n << ": " << cut.status().message();
    EXPECT_FALSE(cut->truncated.empty()) << n;
    EXPECT_TRUE(cut->event_count() == 0 || cut->event_count() == 1000) << n;
  }
  const std::string zeros = whole.substr(0, whole.size() - 30) + std::string(4096, '\0');
  EXPECT_FALSE(read_bytes(bytes_of(zeros), "zeros").ok()) << "zeros inside a block are damage";
}

TEST(TraceFormat, ZerosAfterTheLastBlockAreACut) {
  const TempFile temp;
  std::string whole = small_trace(temp.path);
  whole.resize(whole.size() - wire::kBlockHeaderSize - 3);  // the end block
  whole += std::string(10000, '\0');
  const auto cut = read_bytes(bytes_of(whole), "zeros");
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_NE(cut->truncated.find("10000 bytes"), std::string::npos) << cut->truncated;
  EXPECT_EQ(cut->event_count(), 1000U);
}

TEST(TraceFormat, EveryFlippedByteIsNoticed) {
  const TempFile temp;
  const std::string whole = small_trace(temp.path);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    const auto result = read_bytes(bytes_of(bad), "bad");
    // The header's reserved bytes carry nothing.
    if (i >= 12 && i < wire::kFileHeaderSize) continue;
    EXPECT_FALSE(result.ok()) << "byte " << i;
  }
}

TEST(TraceFormat, LaterBlockTypesAreSkippedAndLaterVersionsRefused) {
  const TempFile temp;
  std::string whole = small_trace(temp.path);
  {
    wire::BlockFile file;
    ASSERT_TRUE(file.create(temp.path).ok());
    wire::Encoder out;
    out.text("what a later version may add");
    ASSERT_TRUE(file.append(static_cast<wire::BlockType>(200), out.bytes()).ok());
    ASSERT_TRUE(file.close().ok());
  }
  const std::string later = read_file(temp.path).value();
  whole.insert(wire::kFileHeaderSize, later.substr(wire::kFileHeaderSize));
  EXPECT_EQ(read_bytes(bytes_of(whole), "later").value().event_count(), 1000U);
  whole[8] = 9;
  const auto refused = read_bytes(bytes_of(whole), "later");
  EXPECT_EQ(refused.status().code(), ErrorCode::kUnsupported);
  EXPECT_NE(refused.status().message().find("version 9"), std::string::npos);
}

TEST(TraceFormat, MemoryLimitHolds) {
  const TempFile temp;
  const std::string whole = small_trace(temp.path);
  const auto result = read_bytes(bytes_of(whole), "big", {.memory_limit = 10_KiB});
  EXPECT_EQ(result.status().code(), ErrorCode::kOutOfHostMemory);
}

TEST(TraceFormat, OtherFilesAreNamedForWhatTheyAre) {
  for (const auto& [text, hint] : {std::pair<std::string, std::string>{"", "is empty"},
                                   {"PK\x03\x04xxxxxxxxxxx", "zip"},
                                   {"{\"a\": 1}", "JSON"},
                                   {"(lp0\n.", "protocol 0"}}) {
    const auto result = read_bytes(bytes_of(text), "thing");
    EXPECT_EQ(result.status().code(), ErrorCode::kUnsupported);
    EXPECT_NE(result.status().message().find(hint), std::string::npos) << result.status().message();
  }
  EXPECT_EQ(read("/does/not/exist").status().code(), ErrorCode::kNotFound);
  EXPECT_NE(read("/tmp").status().message().find("folder"), std::string::npos);
}

}  // namespace
}  // namespace neap::trace
