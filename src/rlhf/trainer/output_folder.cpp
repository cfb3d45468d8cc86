#include "rlhf/trainer/output_folder.h"

#include <unistd.h>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"

namespace neap::rlhf {
namespace fs = std::filesystem;

bool OutputFolder::is_there() {
  if (!lock_) return true;
  const auto change = lock_->check();
  if (!change) return true;
  if (change->now.empty()) {
    loss_ = format("{} {} while the run worked in it", path_.string(), change->what);
    return false;
  }
  log::warn(
      format("{} {} while the run works in it. The run continues there; to resume from it, "
             "set trainer.default_local_dir={}",
             path_.string(), change->what, change->now.string()));
  path_ = change->now;
  return true;
}

std::string OutputFolder::change_of_key() const {
  return path_ == first_path_ ? "" : format("trainer.default_local_dir={}", path_.string());
}

std::string OutputFolder::replace() {
  const fs::path own = path_;
  lock_.reset();
  std::error_code error;
  const bool unused = !fs::exists(own, error) || fs::is_empty(own, error);
  if (!unused) path_ = own.string() + format(".rescued-{}", ::getpid());
  try {
    lock();
  } catch (const Error&) {
    if (!unused) throw;
    path_ = own.string() + format(".rescued-{}", ::getpid());
    lock();
  }
  return loss_;
}

}  // namespace neap::rlhf
