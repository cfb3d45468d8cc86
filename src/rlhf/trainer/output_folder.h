// The output folder of a run, which may be moved or removed while the run trains. A run follows a
// folder that was moved. If its folder is lost, it saves in a new one.
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/output_lock.h"

namespace neap::rlhf {

class OutputFolder {
 public:
  explicit OutputFolder(std::filesystem::path path) : path_(std::move(path)) {}
  /// Called by the first rank, which writes in the folder. kBusy: another run uses it.
  void lock() { lock_.emplace(path_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// A path for writers that stays valid if the folder is moved.
  [[nodiscard]] std::filesystem::path stable_path() const {
    return lock_ ? lock_->stable_path() : path_;
  }
  /// If the folder was moved since the run began: the key and value with which a command resumes
  /// from it. Else empty.
  [[nodiscard]] std::string change_of_key() const;
  /// Needs the lock. Returns false if the folder is lost. A moved folder is followed, with a
  /// warning.
  [[nodiscard]] bool is_there();
  /// For the other ranks: sets the path where the first rank works now.
  void follow(std::filesystem::path path) { path_ = std::move(path); }
  /// Creates a folder in place of a lost one: at the same path, or PATH.rescued-PID if another run
  /// uses that. Returns what happened to the lost folder.
  std::string replace();

 private:
  std::filesystem::path path_;
  std::filesystem::path first_path_ = path_;
  std::optional<train::OutputLock> lock_;
  std::string loss_;
};

}  // namespace neap::rlhf
