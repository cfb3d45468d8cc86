# Writes OUTPUT, a C++ file that holds FILES of FOLDER as strings, types.cuh in front of each. The first line that includes a
# file of FOLDER, or of src/, is replaced by that file. Called at build time.
string(REPLACE "," ";" files "${FILES}")
file(READ "${FOLDER}/types.cuh" types)
set(list "")
foreach(name IN LISTS files)
  file(READ "${FOLDER}/${name}.cu" source)
  set(there "")
  while(source MATCHES "#include \"([a-z0-9_/]+\\.(cuh|h))\"\n")
    set(line "${CMAKE_MATCH_0}")
    set(included "${FOLDER}/${CMAKE_MATCH_1}")
    if(NOT EXISTS "${included}")
      set(included "${FOLDER}/../../${CMAKE_MATCH_1}")
    endif()
    set(text "")
    list(FIND there "${included}" at)
    if(at EQUAL -1)
      list(APPEND there "${included}")
      file(READ "${included}" text)
      string(REPLACE "#pragma once\n" "" text "${text}")
    endif()
    string(FIND "${source}" "${line}" begin)
    string(LENGTH "${line}" length)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${source}" 0 ${begin} before)
    string(SUBSTRING "${source}" ${end} -1 behind)
    string(CONCAT source "${before}" "${text}" "${behind}")
  endwhile()
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
