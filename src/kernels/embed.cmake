# Writes OUTPUT, a C++ file that holds FILES of FOLDER as strings, types.cuh in front of each and files that one includes in
# its place. Called at build time.
string(REPLACE "," ";" files "${FILES}")
file(READ "${FOLDER}/types.cuh" types)
set(list "")
foreach(name IN LISTS files)
  file(READ "${FOLDER}/${name}.cu" source)
  string(REGEX MATCHALL "#include \"[a-z_]+\\.cuh\"\n" includes "${source}")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "#include \"(.*)\"\n" "\\1" included "${line}")
    file(READ "${FOLDER}/${included}" text)
    string(REPLACE "${line}" "${text}" source "${source}")
  endforeach()
  string(FIND "${types}${source}" ")neap\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${name}.cu holds the end mark of a raw string")
  endif()
  string(APPEND list "    {\"${name}\", R\"neap(${types}\n${source})neap\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "#include <array>

#include \"kernels/sources.h\"

namespace neap::kernels {
std::span<const Source> sources() {
  static constexpr auto kSources = std::to_array<Source>({
${list}  });
  return kSources;
}
}  // namespace neap::kernels
")
