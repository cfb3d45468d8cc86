// A cache of compiled kernels on the disk, so that they are compiled once per machine.
//
// Files     one per source, compiler options and version, architecture and driver, named by a hash
//           of these. A file begins with a hash of the rest; a damaged one is compiled again. Files
//           are replaced atomically.
//
// Threads   any, also of several processes.
// Failure   as of Compiler::compile. A folder that cannot be read or written costs the time to compile.
// Cost      a millisecond for a cached file.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/compiler.h"

namespace neap::kernels {

/// `folder` empty: nothing is cached. `driver`: its version.
[[nodiscard]] Result<std::string> cubin_of(const Compiler& compiler, const Source& source,
                                           int architecture, int driver,
                                           const std::filesystem::path& folder);

/// `kernels` in the user's cache folder; empty if there is none.
[[nodiscard]] std::filesystem::path cubin_folder();

}  // namespace neap::kernels
