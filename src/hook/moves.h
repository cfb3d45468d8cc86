// Pause, resume and exchange on every open device: either all devices move, or none.
//
// Threads   any.
//
// Failure   the arena restores the failed device; devices that had moved are moved back. Discarded
//           contents are not restored.
//
// Cost      that of the slowest device: all devices move at the same time.
#pragma once

#include <span>
#include <string>

#include "hook/runtime.h"

namespace neap::hook {

[[nodiscard]] Result<arena::MoveReport> pause_everywhere(std::span<const std::string> tags,
                                                         const arena::PauseOptions& options);
[[nodiscard]] Result<arena::MoveReport> resume_everywhere(std::span<const std::string> tags,
                                                          const arena::ResumeOptions& options);
[[nodiscard]] Result<arena::MoveReport> exchange_everywhere(std::span<const std::string> out,
                                                            std::span<const std::string> in,
                                                            const arena::PauseOptions& options);

}  // namespace neap::hook
