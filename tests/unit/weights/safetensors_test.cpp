#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "safetensors_fixture.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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
