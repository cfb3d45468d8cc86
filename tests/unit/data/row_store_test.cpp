// Rows in files: whole or not at all, made once.
#include "data/row_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <ctime>
#include <optional>
#include <thread>

#include "data/content_hash.h"
#include "data/row_cache.h"
#include "unit/data/folder.h"

namespace neap::data {
namespace {

using ::testing::HasSubstr;

const std::string kKey = hash_of("key");

std::string text_of(std::uint64_t i) {
  return std::string(i % 37, static_cast<char>('a' + i % 26)) + std::to_string(i);
}

Result<RowStore> fill(RowWriter& writer, std::uint64_t rows) {
  for (std::uint64_t i = 0; i < rows; ++i) NEAP_TRY(writer.append(text_of(i)));
  return writer.finish({{"rows", rows}});
}

void expect_rows(const RowStore& store, std::uint64_t rows) {
  ASSERT_EQ(store.size(), rows);
  EXPECT_EQ(store.notes()["rows"], rows);
  for (const std::uint64_t i : {std::uint64_t{0}, rows / 2, rows - 1})
    EXPECT_EQ(store.row(i).value(), text_of(i));
  EXPECT_FALSE(store.row(rows).ok());
}

class RowStoreTest : public Folder {
 protected:
  Result<RowStore> cached(std::uint64_t rows, int* made = nullptr) {
    return cached_rows(root_, kKey, 1_GiB, [&](RowWriter& writer) {
      if (made != nullptr) ++*made;
      return fill(writer, rows);
    });
  }
};

TEST_F(RowStoreTest, RowsComeBackFromMemoryAndFile) {
  // More than a window of the index.
  for (const std::uint64_t rows : {1U, 10U, 300000U}) {
    MemoryRowWriter memory(1_GiB);
    expect_rows(fill(memory, rows).value(), rows);
    const auto file = root_ / "a.rows";
    auto writer = RowFileWriter::create(file, kKey).value();
    EXPECT_FALSE(std::filesystem::exists(file)) << "before it is whole";
    const RowStore made = fill(*writer, rows).value();
    expect_rows(made, rows);
    expect_rows(RowStore::open(file, kKey).value(), rows);
    EXPECT_EQ(made.memory(), Bytes(0));
    EXPECT_EQ(files(), 1U);
    EXPECT_THAT(RowStore::open(file, hash_of("other")).status().message(), HasSubstr("other rows"));
    std::filesystem::remove(file);
  }
  MemoryRowWriter none(1_GiB);
  EXPECT_EQ(none.finish({}).value().size(), 0U);
  EXPECT_EQ(RowStore().size(), 0U);
}

TEST_F(RowStoreTest, MemoryHasALimit) {
  MemoryRowWriter writer(1_MiB);
  EXPECT_EQ(fill(writer, 300000).status().code(), ErrorCode::kOutOfHostMemory);
}

TEST_F(RowStoreTest, EveryDamageToTheEndIsFound) {
  const auto file = root_ / "a.rows";
  (void)fill(*RowFileWriter::create(file, kKey).value(), 20).value();
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::size_t index =
      bytes.size() - 104 - std::string("{\"rows\":20}").size() - 20 * sizeof(RowEnd);
  for (std::size_t at = index; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 0x41);
    const Result<RowStore> opened = RowStore::open(write("b.rows", other), kKey);
    EXPECT_FALSE(opened.ok()) << "byte " << at;
  }
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(RowStore::open(write("b.rows", bytes.substr(0, size)), kKey).ok());
}

// The hash covered the index only.
TEST_F(RowStoreTest, ADamagedRowIsFoundWhenItIsRead) {
  const auto file = root_ / "a.rows";
  const RowStore rows = fill(*RowFileWriter::create(file, kKey).value(), 20).value();
  const std::string last = rows.row(19).value();
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(16);
    out.put('?');
  }
  const RowStore opened = RowStore::open(file, kKey).value();
  const Result<std::string> first = opened.row(0);
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.status().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(first.status().message(), HasSubstr("is damaged at row 0"));
  EXPECT_EQ(opened.row(19).value(), last);
}

// Nothing was ever removed.
TEST_F(RowStoreTest, TheCacheIsBoundedAndKeepsWhatIsUsed) {
  const auto make = [&](int i, Bytes limit) {
    return cached_rows(root_, hash_of(std::to_string(i)), limit,
                       [&](RowWriter& writer) { return fill(writer, 10000); })
        .value();
  };
  const auto path = [&](int i) { return root_ / (hash_of(std::to_string(i)) + ".rows"); };
  const auto age = [&](int i, std::time_t hours) {
    const timespec times[2] = {{std::time(nullptr) - hours * 3600, 0}, {0, UTIME_OMIT}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path(i).c_str(), times, 0), 0);
  };
  std::optional<RowStore> open;
  for (int i = 0; i < 4; ++i) {
    const RowStore rows = make(i, Bytes(0));
    if (i == 0) open = rows;
    age(i, 10 - i);
  }
  (void)write("ours.txt", "of somebody else");
  const Bytes one(std::filesystem::file_size(path(0)));
  (void)make(1, Bytes(0));  // used again
  (void)make(5, one * 3);
  // The oldest is open; then 2 and 3 are the least recently used.
  for (const int kept : {0, 1, 5}) EXPECT_TRUE(std::filesystem::exists(path(kept))) << kept;
  for (const int gone : {2, 3}) EXPECT_FALSE(std::filesystem::exists(path(gone))) << gone;
  EXPECT_TRUE(std::filesystem::exists(root_ / "ours.txt"));
  EXPECT_EQ(open->row(9999).value(), text_of(9999));
}

TEST_F(RowStoreTest, AWriterThatDoesNotFinishLeavesNothing) {
  {
    auto writer = RowFileWriter::create(root_ / "a.rows", kKey).value();
    ASSERT_TRUE(writer->append(std::string(3 << 20, 'x')).ok());
    EXPECT_EQ(files(), 1U);
  }
  EXPECT_EQ(files(), 0U);
}

TEST_F(RowStoreTest, AFullDiskIsAnErrorThatNamesTheFolder) {
  // The largest file that this process may write stands in for the disk.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4 << 20, 4 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Result<RowStore> made = cached(500000);
    const bool clean =
        !made.ok() && made.status().message().find("data.cache_dir") != std::string::npos &&
        !std::filesystem::exists(root_ / (kKey + ".rows")) && files() == 1;  // the lock
    ::_exit(clean ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  expect_rows(cached(500000).value(), 500000);
}

TEST_F(RowStoreTest, RowsAreMadeOnceAndADamagedFileAgain) {
  int made = 0;
  expect_rows(cached(1000, &made).value(), 1000);
  expect_rows(cached(1000, &made).value(), 1000);
  EXPECT_EQ(made, 1);
  std::filesystem::resize_file(root_ / (kKey + ".rows"), 300);
  expect_rows(cached(1000, &made).value(), 1000);
  EXPECT_EQ(made, 2);
}

TEST_F(RowStoreTest, AKilledWriterLeavesNoRowsAndItsFileGoes) {
  const pid_t child = ::fork();
  if (child == 0) {
    (void)cached_rows(root_, kKey, 1_GiB, [](RowWriter& writer) -> Result<RowStore> {
      (void)writer.append(std::string(5 << 20, 'x'));
      ::raise(SIGKILL);
      return writer.finish({});
    });
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(files(), 2U) << "what it wrote, and the lock";
  expect_rows(cached(1000).value(), 1000);
  EXPECT_EQ(files(), 2U) << "rows and lock";
}

TEST_F(RowStoreTest, ASecondProcessWaitsAndReadsWhatTheFirstMade) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const Result<RowStore> rows = cached_rows(root_, kKey, 1_GiB, [&](RowWriter& writer) {
        std::ofstream(root_ / "made", std::ios::app) << "x";
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return fill(writer, 5000);
      });
      ::_exit(rows.ok() && rows->size() == 5000 && rows->row(4999).value() == text_of(4999) ? 0
                                                                                            : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(std::filesystem::file_size(root_ / "made"), 1U);
}

TEST_F(RowStoreTest, AHashIsKeptUntilTheFileChanges) {
  const auto file = write("data", std::string(3 << 20, 'x'));
  const std::string hash = content_hash(root_, file).value();
  EXPECT_EQ(hash, hash_of(std::string(3 << 20, 'x')));
  EXPECT_EQ(files(), 1U) << "a file that was just written may change within a tick of the clock";
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_EQ(content_hash(root_, file).value(), hash);
  EXPECT_EQ(files(), 2U);
  (void)write("data", std::string(3 << 20, 'y'));
  EXPECT_NE(content_hash(root_, file).value(), hash);
}

}  // namespace
}  // namespace neap::data
