// Files as rows: plain, packed, broken and hostile.
#include "data/row_source.h"

#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "base/read_limits.h"
#include "unit/data/folder.h"

namespace neap::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Read {
  std::vector<std::string> rows, places;
  Status status;
};

Read read(const std::filesystem::path& file) {
  Read out;
  auto source = RowSource::open(file);
  if (!source.ok()) {
    out.status = source.status();
    return out;
  }
  RawRow row;
  while (true) {
    const Result<bool> more = (*source)->next(row);
    out.status = more.status();
    if (!more.ok() || !*more) break;
    out.rows.emplace_back(row.text);
    out.places.push_back((*source)->where(row.number));
    EXPECT_EQ((*source)->position(), out.rows.size());
  }
  return out;
}

class RowSourceTest : public Folder {};

TEST_F(RowSourceTest, LinesAreRowsAndEmptyOnesAreNone) {
  const Read all = read(write("a.jsonl", "{\"a\":1}\n\n \t\r\n{\"a\":2}\r\n{\"a\":3}"));
  ASSERT_TRUE(all.status.ok());
  EXPECT_THAT(all.rows, ElementsAre("{\"a\":1}", "{\"a\":2}\r", "{\"a\":3}"));
  EXPECT_THAT(all.places[1], HasSubstr("a.jsonl:4"));
  EXPECT_TRUE(read(write("none.jsonl", "")).status.ok());
  EXPECT_TRUE(read(write("blank.jsonl", "\n\n")).rows.empty());
}

TEST_F(RowSourceTest, AFileThatIsOneArrayIsToldHowToBecomeRows) {
  for (const char* text : {"[{\"a\":1}]", "\n [\n {\"a\":1}\n]\n", "\xEF\xBB\xBF[\n"}) {
    EXPECT_THAT(read(write("a.json", text)).status.message(),
                AllOf(HasSubstr("as a JSON array"),
                      HasSubstr("jq -c '.[]' " + (root_ / "a.json").string())));
  }
  EXPECT_EQ(read(write("a.jsonl", "{}\n[1]\n")).rows.size(), 2U) << "a later row is told alone";
}

TEST_F(RowSourceTest, PackingIsFoundByContentAndMembersFollowEachOther) {
  std::string first, second;
  for (int i = 0; i < 5000; ++i) {
    (i < 3000 ? first : second) += "{\"row\": " + std::to_string(i) + "}\n";
  }
  const Read plain = read(write("plain", first + second));
  ASSERT_EQ(plain.rows.size(), 5000U);
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"one.gz", gzip(first + second)},
           {"two.jsonl", gzip(first) + gzip(second)},  // the name says nothing
           {"one.zst", zstd(first + second)},
           {"two.json", zstd(first) + zstd(second)},
           {"padded.gz", gzip(first + second) + std::string(512, '\0')},
           // pzstd's first frame is one to skip.
           {"pzstd.zst",
            std::string("\x50\x2A\x4D\x18\x04\0\0\0abcd", 12) + zstd(first + second)}}) {
    const Read packed = read(write(name, bytes));
    EXPECT_TRUE(packed.status.ok()) << name << ": " << packed.status.message();
    EXPECT_EQ(packed.rows, plain.rows) << name;
  }
}

TEST_F(RowSourceTest, ABrokenPackingIsAnErrorAtEveryLength) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "{\"row\": " + std::to_string(i * 7919) + "}\n";
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    for (std::size_t size = 5; size < whole.size(); size += 1 + size / 40) {
      const Read cut = read(write("cut", whole.substr(0, size)));
      ASSERT_FALSE(cut.status.ok()) << size;
      EXPECT_THAT(cut.status.message(),
                  AllOf(HasSubstr("cut short"), HasSubstr("while reading"), HasSubstr("/cut:")));
      EXPECT_EQ(cut.status.code(), ErrorCode::kCorrupt);
    }
    const Read garbage = read(write("garbage", whole + "and more"));
    EXPECT_THAT(garbage.status.message(), HasSubstr("is not valid"));
  }
}

TEST_F(RowSourceTest, ALineOverTheLimitIsAnErrorInBoundedMemory) {
  const std::string start = "{\"a\":1}\n{\"text\":\"";
  // 1 GiB of one letter, packed: 1:1000 for gzip, far more for zstd.
  std::string packed = gzip(start), bomb = zstd(start);
  const std::string letters(16 << 20, 'x');
  const std::string gzip_piece = gzip(letters), zstd_piece = zstd(letters);
  for (int i = 0; i < 64; ++i) {
    packed += gzip_piece;
    bomb += zstd_piece;
  }
  for (const auto& [name, bytes] :
       {std::pair{"long.jsonl.gz", packed}, std::pair{"long.jsonl.zst", bomb}}) {
    const Read all = read(write(name, bytes));
    EXPECT_EQ(all.rows.size(), 1U);
    EXPECT_EQ(all.status.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(all.status.message(), HasSubstr(std::string(name) + ":2"));
    EXPECT_THAT(all.status.message(), ::testing::AnyOf(HasSubstr("over the limit of 64 MiB"),
                                                       HasSubstr("for a packed file")));
  }
  const std::string most(read_limits::kRow.part.count(), 'x');
  EXPECT_EQ(read(write("most.jsonl", most + "\n{}\n")).rows.size(), 2U);
  EXPECT_THAT(read(write("over.jsonl", "\n" + most + "x\n{}\n")).status.message(),
              HasSubstr("over.jsonl:2 is over the limit of 64 MiB for a row of data"));
  EXPECT_THAT(read(write("over.jsonl", most + "x")).status.message(), HasSubstr("over.jsonl:1"));
}

TEST_F(RowSourceTest, LinesOfEveryLengthCrossTheWindow) {
  std::string text;
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < 900; ++i) {
    rows.emplace_back((i * 4211) % 9001 + 1, static_cast<char>('a' + i % 26));
    text += rows.back() + "\n";
  }
  rows.emplace_back(3 << 20, 'z');
  text += rows.back();
  EXPECT_EQ(read(write("a.jsonl", text)).rows, rows);
}

TEST_F(RowSourceTest, WhatCannotBeReadIsNamed) {
  EXPECT_THAT(read(root_ / "none.jsonl").status.message(), HasSubstr("none.jsonl"));
  EXPECT_THAT(read(root_).status.message(), HasSubstr("it is a folder"));
}

}  // namespace
}  // namespace neap::data
