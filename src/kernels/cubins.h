// Compiled kernels on the disk, so that a program compiles them once a machine.
//
// Files     one a kernel's source, compiler's options and version, card's architecture and driver: named by a hash of these.
//           Files are replaced as a whole, and begin with a hash of the rest: a damaged one is compiled again.
//
// Threads   any, processes too.
// Failure   as of Compiler::compile. A folder that cannot be read or written costs the time to compile.
// Cost      a millisecond for a file that is there.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/compiler.h"

namespace neap::kernels {

/// `folder`: empty, nothing is kept. `driver`: its version.
[[nodiscard]] Result<std::string> cubin_of(const Compiler& compiler, const Source& source,
                                           int architecture, int driver,
                                           const std::filesystem::path& folder);

/// `kernels` in the user's cache folder; empty where there is none.
[[nodiscard]] std::filesystem::path cubin_folder();

}  // namespace neap::kernels
