#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>

#include "base/file.h"
#include "base/format.h"
#include "base/parallel_for.h"
#include "base/status.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              format("neap-safetensors-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A file of that header and that many bytes of data.
  fs::path file(const std::string& header, std::size_t data, std::uint64_t length = UINT64_MAX) {
    if (length == UINT64_MAX) length = header.size();
    fs::path path = folder_ / "t.safetensors";
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    for (int i = 0; i < 8; ++i) out.put(static_cast<char>(length >> (8 * i) & 0xff));
    out << header << std::string(data, '\x5a');
    return path;
  }
  void refuses(const std::string& header, std::size_t data, const std::string& why) {
    const fs::path path = file(header, data);
    EXPECT_THAT([&] { (void)SafetensorsFile::open(path); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr(path.string()), HasSubstr(why))))
        << header;
  }
  fs::path folder_;
};

struct Contents {
  TensorInfo info;
  std::string bytes;
};
Contents source(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                std::string bytes) {
  return {{std::move(name), std::move(dtype), std::move(shape)}, std::move(bytes)};
}

std::vector<TensorInfo> infos_of(const std::vector<Contents>& tensors) {
  std::vector<TensorInfo> out;
  out.reserve(tensors.size());
  for (const Contents& t : tensors) out.push_back(t.info);
  return out;
}
template <class Writer>
void write_all(Writer writer, const std::vector<Contents>& tensors) {
  // In two pieces each, the last first.
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const auto all = std::as_bytes(std::span(tensors[i].bytes));
    writer.write(i, all.size() / 2, all.subspan(all.size() / 2));
    writer.write(i, 0, all.first(all.size() / 2));
  }
  writer.commit();
}
void write_safetensors(const fs::path& path, const std::vector<Contents>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
  write_all(SafetensorsWriter(path, infos_of(tensors), metadata), tensors);
}
void write_sharded(const fs::path& folder, const std::vector<Contents>& tensors, Bytes max_shard) {
  write_all(ShardedWriter(folder, infos_of(tensors), max_shard), tensors);
}

std::string contents(const SafetensorsFile& file, std::string_view name) {
  const TensorEntry* t = file.find(name);
  if (t == nullptr) return "none";
  std::string bytes(t->bytes(), '\0');
  file.read(*t, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST_F(Safetensors, WritesWhatItReads) {
  const fs::path path = folder_ / "a.safetensors";
  std::vector<Contents> tensors;
  tensors.push_back(source("small", "U8", {3}, "abc"));
  tensors.push_back(source("b \"quoted\" \xc3\xa9", "F32", {2}, "12345678"));
  tensors.push_back(source("scalar", "I64", {}, "eightby!"));
  tensors.push_back(source("empty", "BF16", {0, 7}, ""));
  write_safetensors(path, tensors, {{"format", "pt"}, {"step", "12"}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(contents(file, "small"), "abc");
  EXPECT_EQ(contents(file, "b \"quoted\" \xc3\xa9"), "12345678");
  EXPECT_EQ(contents(file, "scalar"), "eightby!");
  EXPECT_EQ(contents(file, "empty"), "");
  EXPECT_EQ(file.metadata().at("step"), "12");
  EXPECT_EQ(file.find("absent"), nullptr);
  // Widest first, so that every tensor is aligned to its element.
  EXPECT_EQ(file.tensors().front().name, "scalar");
  EXPECT_EQ(file.tensors().back().name, "small");
  for (const auto& t : file.tensors())
    EXPECT_EQ(t.begin % static_cast<std::uint64_t>(bits_of_dtype(t.dtype) / 8), 0u) << t.name;
}

// Before there were checksums, damage in a tensor's bytes was read as weights.
TEST_F(Safetensors, ChecksumsFindWhatWasDamaged) {
  const fs::path path = folder_ / "a.safetensors";
  std::string large(TensorCheck::kPiece + 1000, 'x');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 >> 3);
  const auto bytes = static_cast<std::int64_t>(large.size());
  std::vector<Contents> tensors;
  tensors.push_back(source("large", "U8", {bytes}, large));
  tensors.push_back(source("none", "F32", {0}, ""));
  tensors.push_back(source("small", "F32", {2}, "12345678"));
  const auto check = [&](std::string_view name) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const TensorEntry& entry = *file.find(name);
    TensorCheck pieces(file, entry);
    for (std::uint64_t at = 0; at < entry.bytes(); at += TensorCheck::kPiece) {
      std::string piece(std::min(entry.bytes() - at, TensorCheck::kPiece), '\0');
      file.read(entry, at, std::as_writable_bytes(std::span(piece)));
      pieces.add(at, std::as_bytes(std::span(piece)));
    }
    pieces.finish();
  };
  const auto flip = [&](std::uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  };
  for (const bool whole_pieces : {false, true}) {
    SCOPED_TRACE(whole_pieces);
    SafetensorsWriter writer(path, infos_of(tensors));
    if (whole_pieces) {
      const auto all = std::as_bytes(std::span(large));
      writer.write(0, TensorCheck::kPiece, all.subspan(TensorCheck::kPiece));
      writer.write(0, 0, all.first(TensorCheck::kPiece));
      writer.write(2, 0, std::as_bytes(std::span(tensors[2].bytes)));
      writer.commit();
    } else {
      write_all(std::move(writer), tensors);
    }
    const SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_EQ(file.checksums(), SafetensorsFile::Checksums::kValid);
    EXPECT_EQ(file.metadata().size(), 1U) << "other readers' metadata only";
    for (const TensorEntry& t : file.tensors()) EXPECT_NO_THROW(check(t.name));
    const std::uint64_t data = fs::file_size(path) - large.size() - 8;
    for (const std::uint64_t at :
         {std::uint64_t{8}, TensorCheck::kPiece, TensorCheck::kPiece + 900}) {
      flip(data + at);
      EXPECT_NO_THROW(check("small"));
      EXPECT_THROW(check("large"), Error) << at;
      flip(data + at);
    }
    flip(data + 3);
    EXPECT_THROW(check("small"), Error);
    flip(data + 3);
    // In the header: "pt" is another text.
    const std::string header = read_file(path).value().substr(0, data);
    flip(header.find("pt"));
    EXPECT_EQ(SafetensorsFile::open(path).checksums(), SafetensorsFile::Checksums::kStale);
    EXPECT_NO_THROW(check("large")) << "a program that rewrites the file may do so";
  }
}

TEST_F(Safetensors, AcceptsLegalOddities) {
  EXPECT_NO_THROW((void)SafetensorsFile::open(file("{}", 0)));
  EXPECT_NO_THROW((void)SafetensorsFile::open(file("{}      ", 0)));
  EXPECT_NO_THROW((void)SafetensorsFile::open(file(
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3)));
  EXPECT_NO_THROW(
      (void)SafetensorsFile::open(file(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
               "a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
               "e":{"dtype":"U8","shape":[4,0],"data_offsets":[2,2]}})",
                                       2)));
}

TEST_F(Safetensors, RefusesHostileHeaders) {
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,3]}})", 3, "takes 2 bytes");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "hole");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "file's data at 3");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "cut short");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
              "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3, "inside");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2, "offsets are 2 to 0");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
              "a":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
          2, "\"a\" twice");
  refuses(R"({"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 2,
          "dtype twice");
  refuses(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\" twice");
  refuses(R"({"__metadata__":{"k":1}})", 0, "unexpected");
  refuses(R"({"a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}})", 2, "unknown dtype");
  refuses(R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", 2, "unexpected");
  refuses(R"({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", 2, "unexpected");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}})", 2, "1 data_offsets");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1,2]}})", 2, "unexpected");
  refuses(R"({"a":{"dtype":"U8","shape":[2]}})", 2, "lacks");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}})", 2, "field \"x\"");
  refuses(R"({"a":[]})", 0, "unexpected");
  refuses(R"({"a":{"dtype":"U8","shape":[[2]],"data_offsets":[0,2]}})", 2, "unexpected");
  refuses(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "no size");
  // 2^62 * 8 bytes wraps to zero in 64 bits.
  refuses(R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
          "no size in 64 bits");
  refuses(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
          "no size in 64 bits");
  refuses(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0,
          "dimension of 18446744073709551615");
  refuses("{\"a\xff\":1}", 0, "not valid JSON");
  refuses("{", 0, "not valid JSON");
  refuses("[]", 0, "does not begin with {");
  refuses(" {}", 0, "does not begin with {");
  refuses("", 0, "does not begin with {");
  refuses("{} x", 0, "not valid JSON");
}

TEST_F(Safetensors, RefusesLengthsThatLie) {
  EXPECT_THAT(
      [&] { (void)SafetensorsFile::open(file("{}", 0, 100'000'001)); },
      ThrowsMessage<Error>(HasSubstr("over the limit of 95.37 MiB for a safetensors header")));
  EXPECT_THAT(
      [&] { (void)SafetensorsFile::open(file("{}", 0, UINT64_MAX - 1)); },
      ThrowsMessage<Error>(HasSubstr("over the limit of 95.37 MiB for a safetensors header")));
  EXPECT_THAT([&] { (void)SafetensorsFile::open(file("{}", 0, 3)); },
              ThrowsMessage<Error>(HasSubstr("has 10 in all")));
  std::ofstream(folder_ / "short") << "1234567";
  EXPECT_THAT([&] { (void)SafetensorsFile::open(folder_ / "short"); },
              ThrowsMessage<Error>(HasSubstr("at least 8")));
  EXPECT_THAT([&] { (void)SafetensorsFile::open(folder_); },
              ThrowsMessage<Error>(HasSubstr("is a folder, not a file")));
  EXPECT_THAT([&] { (void)SafetensorsFile::open(folder_ / "none"); },
              ThrowsMessage<Error>(HasSubstr("No such file")));
}

TEST_F(Safetensors, DeepNestingAndManyNamesCostNoMoreThanTheirBytes) {
  std::string deep = "{\"a\":";
  deep.append(2'000'000, '[');
  refuses(deep, 0, "nests over the limit of 500 levels for a safetensors header");
  std::string many = "{";
  for (int i = 0; i < 200'000; ++i)
    many += format("\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},", i);
  many.back() = '}';
  EXPECT_EQ(SafetensorsFile::open(file(many, 0)).tensors().size(), 200'000u);
}

TEST_F(Safetensors, RandomDamageIsAnErrorOrAFileThatHolds) {
  const fs::path good = folder_ / "good";
  write_safetensors(good, {source("weight", "F32", {2, 3}, std::string(24, 'w')),
                           source("bias", "F16", {3}, std::string(6, 'b'))});
  std::ifstream in(good, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 random(42);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = bytes;
    const int hits = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < hits; ++i) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 4);
          break;
        default:
          damaged.insert(at, 1, "0123456789[]{}\",:"[random() % 17]);
      }
      if (damaged.empty()) damaged = "x";
    }
    const fs::path path = folder_ / "damaged";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    try {
      const SafetensorsFile file = SafetensorsFile::open(path);
      for (const auto& t : file.tensors()) EXPECT_EQ(contents(file, t.name).size(), t.bytes());
    } catch (const Error& e) {
      ++refused;
      EXPECT_THAT(e.what(), HasSubstr(path.string()));
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST_F(Safetensors, AFileCutShortWhileOpenIsAnError) {
  const fs::path path = folder_ / "a.safetensors";
  write_safetensors(path, {source("x", "U8", {100'000}, std::string(100'000, 'x'))});
  const SafetensorsFile file = SafetensorsFile::open(path);
  fs::resize_file(path, 5000);
  EXPECT_THAT([&] { (void)contents(file, "x"); }, ThrowsMessage<Error>(HasSubstr("ends at byte")));
}

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

TEST_F(Safetensors, ShardsAreFoundByTheirIndex) {
  const auto tensors = [] {
    std::vector<Contents> all;
    all.reserve(5);
    for (int i = 0; i < 5; ++i)
      all.push_back(
          source(format("t{}", i), "U8", {10}, std::string(10, static_cast<char>('a' + i))));
    return all;
  };
  write_sharded(folder_, tensors(), Bytes(25));
  EXPECT_TRUE(fs::exists(folder_ / "model-00003-of-00003.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  const WeightFolder sharded = WeightFolder::open(folder_);
  EXPECT_EQ(sharded.names().size(), 5u);
  for (int i = 0; i < 5; ++i) {
    const auto found = sharded.find(format("t{}", i));
    ASSERT_TRUE(found);
    EXPECT_EQ(contents(*found.file, found.tensor->name),
              std::string(10, static_cast<char>('a' + i)));
  }
  EXPECT_FALSE(sharded.find("t5"));
  // Saved again as one file: what would shadow it or waste space is gone.
  write_sharded(folder_, tensors(), Bytes(1000));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  EXPECT_EQ(WeightFolder::open(folder_).names().size(), 5u);
  write_sharded(folder_, tensors(), Bytes(25));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  EXPECT_EQ(WeightFolder::open(folder_).names().size(), 5u);
}

TEST_F(Safetensors, AnIndexCannotLeaveItsFolder) {
  const auto index = [&](const std::string& file) {
    std::ofstream(folder_ / "model.safetensors.index.json")
        << R"({"weight_map":{"a":")" + file + "\"}}";
  };
  for (const std::string file : {"../x.safetensors", "/etc/passwd", "..", ""}) {
    index(file);
    EXPECT_THAT([&] { (void)WeightFolder::open(folder_); },
                ThrowsMessage<Error>(HasSubstr("not a file name")));
  }
  std::string many = "{\"weight_map\":{";
  for (int i = 0; i < 200'000; ++i) many += format("\"{}\":\"s.safetensors\",", i);
  std::ofstream(folder_ / "model.safetensors.index.json") << many << "\"a\":5}}";
  write_safetensors(folder_ / "s.safetensors", {source("b", "U8", {1}, "b")});
  EXPECT_THROW((void)WeightFolder::open(folder_), Error);  // in less than the test's time limit
  index("s.safetensors");
  EXPECT_THAT([&] { (void)WeightFolder::open(folder_); },
              ThrowsMessage<Error>(HasSubstr("which lacks it")));
  fs::remove(folder_ / "model.safetensors.index.json");
  std::ofstream(folder_ / "pytorch_model.bin") << "x";
  EXPECT_THAT([&] { (void)WeightFolder::open(folder_); },
              ThrowsMessage<Error>(HasSubstr("a pickle")));
}

}  // namespace
}  // namespace neap::weights
