#include "weights/units_in_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <numeric>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class UnitsInFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              format("neap-units-in-files-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    unit_.name = "block.0";
    unit_.block = 0;
    for (const auto& [name, shape] :
         {std::pair<std::string, std::vector<std::int64_t>>{"model.layers.0.q.weight", {4, 6}},
          {"model.layers.0.q.bias", {4}}}) {
      spec::Parameter& parameter = unit_.parameters.emplace_back();
      parameter.name = name;
      parameter.shape = shape;
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::vector<TensorInfo>& tensors, Bytes max_shard = 1_MiB) const {
    ShardedWriter writer(folder_, tensors, max_shard);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<std::int64_t>& shape = tensors[i].shape;
      const auto elements =
          std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
      const auto width = static_cast<std::size_t>(bits_of_dtype(tensors[i].dtype)) / 8;
      const std::vector<std::byte> bytes(elements * width, static_cast<std::byte>(i + 1));
      writer.write(i, 0, bytes);
    }
    writer.commit();
  }
  [[nodiscard]] bool found(spec::Dtype dtype = spec::Dtype::kFloat32) const {
    return has_units(OpenFolders(), folder_, {unit_}, dtype);
  }
  fs::path folder_;
  spec::FlatUnit unit_;
};

TEST_F(UnitsInFiles, TensorsOfTheShapeAndTypeAreFound) {
  // In shards, and without the prefix.
  for (const std::string prefix : {"model.", ""}) {
    write({{prefix + "layers.0.q.bias", "F32", {4}},
           {"other", "BF16", {3}},
           {prefix + "layers.0.q.weight", "F32", {4, 6}}},
          Bytes(16));
    const WeightFolder files = WeightFolder::open(folder_);
    const auto units = find_units(files, {unit_}, spec::Dtype::kFloat32);
    ASSERT_TRUE(units);
    ASSERT_EQ(units->size(), 1U);
    ASSERT_EQ((*units)[0].size(), 2U);
    EXPECT_EQ((*units)[0][0].tensor->name, prefix + "layers.0.q.weight");
    EXPECT_EQ((*units)[0][1].tensor->name, prefix + "layers.0.q.bias");
    EXPECT_NE((*units)[0][0].file->descriptor(), (*units)[0][1].file->descriptor());
    // Where the tensor's bytes are.
    const WeightFolder::Found& bias = (*units)[0][1];
    std::string bytes(16, '\0');
    ASSERT_EQ(::pread(bias.file->descriptor(), bytes.data(), 16,
                      static_cast<off_t>(bias.file->offset_of(*bias.tensor))),
              16);
    EXPECT_EQ(bytes, std::string(16, '\1'));
  }
}

// Each type of model has its own first part of names.
TEST_F(UnitsInFiles, FilesOfTheBareModelLackTheFirstPartOfNames) {
  write({{"layers.0.dense.weight", "F32", {2}}, {"weight", "F32", {2}}});
  const WeightFolder files = WeightFolder::open(folder_);
  EXPECT_TRUE(find_parameter(files, "gpt_neox.layers.0.dense.weight"));
  EXPECT_TRUE(find_parameter(files, "transformer.layers.0.dense.weight"));
  EXPECT_FALSE(find_parameter(files, "score.weight"));
  EXPECT_FALSE(find_parameter(files, "bias"));
}

TEST_F(UnitsInFiles, OtherFormsAreNot) {
  EXPECT_FALSE(found()) << "there are no files";
  write({{"model.layers.0.q.weight", "F32", {4, 6}}});
  EXPECT_FALSE(found()) << "one is missing";
  write({{"model.layers.0.q.weight", "F32", {6, 4}}, {"model.layers.0.q.bias", "F32", {4}}});
  EXPECT_FALSE(found()) << "another shape";
  write({{"model.layers.0.q.weight", "F32", {4, 6}}, {"model.layers.0.q.bias", "BF16", {4}}});
  EXPECT_FALSE(found()) << "another type";
  EXPECT_FALSE(found(spec::Dtype::kBfloat16));
  write({{"model.layers.0.q.weight", "BF16", {4, 6}}, {"model.layers.0.q.bias", "BF16", {4}}});
  EXPECT_TRUE(found(spec::Dtype::kBfloat16));
  EXPECT_FALSE(found(spec::Dtype::kFloat16));
  fs::resize_file(folder_ / "model.safetensors", 100);
  EXPECT_FALSE(found(spec::Dtype::kBfloat16)) << "a file that cannot be read";
}

TEST_F(UnitsInFiles, AFileIsOpenedOnce) {
  write({{"model.layers.0.q.weight", "F32", {4, 6}}, {"model.layers.0.q.bias", "F32", {4}}},
        Bytes(16));
  const OpenFolders folders;
  const SafetensorsFile file = folders.file(folder_ / "model-00001-of-00002.safetensors");
  bool same = false;
  for (const SafetensorsFile& open : folders.weights(folder_)->files())
    same |= open.descriptor() == file.descriptor();
  EXPECT_TRUE(same);
  EXPECT_EQ(folders.file(file.path()).descriptor(), file.descriptor());
}

// A header that was read for the plan says nothing about a file that was written since.
TEST_F(UnitsInFiles, FilesThatChangeAfterTheirHeaderWasReadAreErrors) {
  const fs::path path = folder_ / "model.safetensors";
  write({{"model.layers.0.q.weight", "F32", {4, 6}}});
  const OpenFolders folders;
  const auto again = [&] { (void)folders.weights(folder_); };
  again();
  EXPECT_NO_THROW(again());
  const auto changed =
      ThrowsMessage<Error>(HasSubstr(path.string() + ": was changed after its header"));
  const std::string old = value_or_throw(read_file(path, 1_MiB));
  std::ofstream(path, std::ios::binary) << old << "more";
  EXPECT_THAT(again, changed) << "in place";
  folders.close();
  std::ofstream(path, std::ios::binary) << old;
  again();
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_THAT(again, changed) << "in place, with as many bytes";
  folders.close();
  again();
  write({{"model.layers.0.q.weight", "F32", {6, 4}}});
  EXPECT_NO_THROW(again()) << "the open file is the old one";
}

TEST_F(UnitsInFiles, DamageIsFound) {
  write({{"model.layers.0.q.weight", "F32", {4, 6}}, {"model.layers.0.q.bias", "F32", {4}}});
  const auto check = [&] {
    const WeightFolder files = WeightFolder::open(folder_);
    check_tensors(*find_units(files, {unit_}, spec::Dtype::kFloat32), 2);
  };
  check();
  const fs::path path = folder_ / "model.safetensors";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_THAT(check, ThrowsMessage<Error>(
                         ::testing::AllOf(HasSubstr(path.string()), HasSubstr("checksum"))));
}

}  // namespace
}  // namespace neap::weights
