// The output folder of a run, which somebody may move or remove while the run trains: a run follows a
// folder that was moved, and has another folder to save in where its own is lost.
//
// Threads   one at a time.   Failure   Error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/output_lock.h"

namespace neap::rlhf {

class OutputFolder {
 public:
  explicit OutputFolder(std::filesystem::path path) : path_(std::move(path)) {}
  /// Of the first rank, which writes in it. kBusy: another run does.
  void lock() { lock_.emplace(path_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// For writers: valid even if the folder is moved meanwhile.
  [[nodiscard]] std::filesystem::path stable_path() const {
    return lock_ ? lock_->stable_path() : path_;
  }
  /// The key and value that make a command go on in this folder, if it was moved since the run began; else empty.
  [[nodiscard]] std::string change_of_key() const;
  /// Of a locked folder: false where it is lost. One that was moved is followed, with a warning.
  [[nodiscard]] bool is_there();
  /// In place of a lost folder: one of the same path, or where others use that, PATH.rescued-PID.
  /// Returns what happened to the lost one.
  std::string replace();

 private:
  std::filesystem::path path_;
  std::filesystem::path first_path_ = path_;
  std::optional<train::OutputLock> lock_;
  std::string loss_;
};

}  // namespace neap::rlhf
