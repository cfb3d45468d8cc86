// Files of tensors in a folder of the test, right and broken ones.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/format.h"
#include "base/status.h"
#include "weights/safetensors.h"

namespace neap::weights {

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              format("neap-safetensors-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A file of that header and that many bytes of data.
  std::filesystem::path file(const std::string& header, std::size_t data,
                             std::uint64_t length = UINT64_MAX) {
    if (length == UINT64_MAX) length = header.size();
    std::filesystem::path path = folder_ / "t.safetensors";
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    for (int i = 0; i < 8; ++i) out.put(static_cast<char>(length >> (8 * i) & 0xff));
    out << header << std::string(data, '\x5a');
    return path;
  }
  void refuses(const std::string& header, std::size_t data, const std::string& why) {
    const std::filesystem::path path = file(header, data);
    EXPECT_THAT([&] { (void)SafetensorsFile::open(path); },
                ::testing::ThrowsMessage<Error>(::testing::AllOf(
                    ::testing::HasSubstr(path.string()), ::testing::HasSubstr(why))))
        << header;
  }
  std::filesystem::path folder_;
};

struct Contents {
  TensorInfo info;
  std::string bytes;
};
inline Contents source(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                       std::string bytes) {
  return {{std::move(name), std::move(dtype), std::move(shape)}, std::move(bytes)};
}

inline std::vector<TensorInfo> infos_of(const std::vector<Contents>& tensors) {
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
inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<Contents>& tensors,
                              const std::map<std::string, std::string>& metadata = {
                                  {"format", "pt"}}) {
  write_all(SafetensorsWriter(path, infos_of(tensors), metadata), tensors);
}
inline void write_sharded(const std::filesystem::path& folder, const std::vector<Contents>& tensors,
                          Bytes max_shard) {
  write_all(ShardedWriter(folder, infos_of(tensors), max_shard), tensors);
}

inline std::string contents(const SafetensorsFile& file, std::string_view name) {
  const TensorEntry* t = file.find(name);
  if (t == nullptr) return "none";
  std::string bytes(t->bytes(), '\0');
  file.read(*t, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace neap::weights
