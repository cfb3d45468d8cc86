// Files that are written by several, or not to their end.
#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "base/parallel_for.h"
#include "base/status.h"
#include "safetensors_fixture.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(Safetensors, AFailedWriteLeavesTheOldFileAndNoRubbish) {
  const fs::path path = folder_ / "a.safetensors";
  write_safetensors(path, {source("x", "U8", {3}, "old")});
  const auto expect_old = [&] {
    EXPECT_EQ(contents(SafetensorsFile::open(path), "x"), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  };
  EXPECT_THROW(write_safetensors(path, {source("x", "U8", {4}, "old")}), Error);
  expect_old();
  EXPECT_THROW(write_safetensors(path, {source("x", "U8", {2}, "old")}), Error);
  expect_old();
  EXPECT_THROW(
      write_safetensors(path, {source("x", "U8", {3}, "new"), source("x", "U8", {3}, "new")}),
      Error);
  expect_old();
  // A disk that is full after 64 KiB, as far as this process can tell.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight{65536, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_THAT(
      [&] { write_safetensors(path, {source("x", "U8", {100'000}, std::string(100'000, 'n'))}); },
      ThrowsMessage<Error>(HasSubstr(path.string())));
  setrlimit(RLIMIT_FSIZE, &before);
  expect_old();
}

// Pieces of one writer, of two, and of none of them whole.
TEST_F(Safetensors, SeveralWritersOfOneFileMakeTheFileOfOne) {
  std::string large(2 * TensorCheck::kPiece + 1000, 'x');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 >> 3);
  std::vector<Contents> tensors;
  tensors.push_back(source("large", "U8", {static_cast<std::int64_t>(large.size())}, large));
  tensors.push_back(source("small", "F32", {2}, "12345678"));
  write_safetensors(folder_ / "one.safetensors", tensors);
  const std::string one = value_or_throw(read_file(folder_ / "one.safetensors"));

  const fs::path path = folder_ / "two.safetensors";
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  SafetensorsWriter first(path, infos_of(tensors), metadata);
  auto second = SafetensorsWriter::join(first.shared_name(), infos_of(tensors), metadata);
  ASSERT_TRUE(second);
  const auto all = std::as_bytes(std::span(large));
  const std::size_t middle = TensorCheck::kPiece + 77;
  first.write(0, 0, all.first(TensorCheck::kPiece));
  first.write(0, TensorCheck::kPiece, all.subspan(TensorCheck::kPiece, 77));
  second->write(0, middle, all.subspan(middle, TensorCheck::kPiece - 77));
  second->write(0, 2 * TensorCheck::kPiece, all.subspan(2 * TensorCheck::kPiece));
  second->write(1, 0, std::as_bytes(std::span(tensors[1].bytes)));
  const SafetensorsWriter::Written told = second->take_written();
  EXPECT_EQ(told.bytes, (std::vector<std::uint64_t>{large.size() - middle, 8}));
  EXPECT_EQ(told.hashes.size(), 2u) << "the last piece, and the small tensor's";
  EXPECT_TRUE(second->take_written().hashes.empty()) << "told once";
  EXPECT_THAT([&] { first.commit(); }, ThrowsMessage<Error>(HasSubstr("bytes too few")));
  first.add(told);
  second->add(first.take_written());
  second->hash_rest(1, 2);
  EXPECT_TRUE(second->take_written().hashes.empty()) << "the other's turn";
  second->hash_rest(0, 2);
  EXPECT_EQ(second->take_written().hashes.size(), 1u);
  second->leave();
  first.commit();
  EXPECT_EQ(value_or_throw(read_file(path)), one);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);

  SafetensorsWriter again(path, infos_of(tensors), metadata);
  EXPECT_THAT(
      [&] {
        again.add({{large.size() + 1, 0}, {}});
      },
      ThrowsMessage<Error>(HasSubstr("was written twice")));
}

TEST_F(Safetensors, AFileIsJoinedByWhoSeesIt) {
  const std::vector<TensorInfo> infos = {{"x", "U8", {3}}};
  std::string name;
  {
    const SafetensorsWriter writer(folder_ / "a.safetensors", infos);
    name = writer.shared_name();
    EXPECT_TRUE(SafetensorsWriter::join(name, infos, {{"format", "pt"}}));
    EXPECT_FALSE(SafetensorsWriter::join("", infos, {}));
    EXPECT_FALSE(SafetensorsWriter::join("x" + name, infos, {})) << "another machine's file";
  }
  EXPECT_FALSE(SafetensorsWriter::join(name, infos, {})) << "it is gone";
}

TEST_F(Safetensors, AWriterThatIsGivenUpLeavesNothing) {
  const fs::path path = folder_ / "a.safetensors";
  { SafetensorsWriter writer(path, {{"x", "U8", {3}}}); }
  EXPECT_TRUE(fs::is_empty(folder_));
  SafetensorsWriter writer(path, {{"x", "U8", {3}}});
  const std::string text = "abc";
  writer.write(0, 0, std::as_bytes(std::span(text)).first(2));
  EXPECT_THAT([&] { writer.commit(); }, ThrowsMessage<Error>(HasSubstr("1 bytes too few")));
  EXPECT_THAT([&] { writer.write(0, 2, std::as_bytes(std::span(text))); },
              ThrowsMessage<Error>(HasSubstr("more bytes than it has")));
  writer.write(0, 2, std::as_bytes(std::span(text)).last(1));
  writer.commit();
  EXPECT_EQ(contents(SafetensorsFile::open(path), "x"), "abc");
}

TEST_F(Safetensors, SeveralThreadsWriteOneFile) {
  const fs::path path = folder_ / "a.safetensors";
  constexpr std::size_t kTensors = 7, kPieces = 50, kBytes = 1000;
  std::vector<TensorInfo> infos;
  for (std::size_t i = 0; i < kTensors; ++i)
    infos.push_back({format("t{}", i), "U8", {static_cast<std::int64_t>(kPieces * kBytes)}});
  SafetensorsWriter writer(path, infos);
  parallel_for(kTensors * kPieces, 4, [&](std::size_t job) {
    const std::string piece(kBytes, static_cast<char>(job % 251));
    writer.write(job % kTensors, job / kTensors * kBytes, std::as_bytes(std::span(piece)));
  });
  writer.commit();
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (std::size_t job = 0; job < kTensors * kPieces; ++job) {
    const std::string all = contents(file, format("t{}", job % kTensors));
    EXPECT_EQ(all.substr(job / kTensors * kBytes, kBytes),
              std::string(kBytes, static_cast<char>(job % 251)));
  }
}

}  // namespace
}  // namespace neap::weights
