# neap_add_module(NAME SOURCES ... [DEPS ...] [PRIVATE_DEPS ...])
#   One room of the house: static library neap_NAME (alias neap::NAME), sources listed by hand.
#   DEPS are rooms or libraries; a room may only name rooms under it (tests/layers checks includes and links).
# neap_add_test(NAME SOURCES ... [DEPS ...] [LABELS ...] [ARGS ...] [TIMEOUT seconds])
#   One GoogleTest binary, one ctest entry per test case.
# neap_add_fuzzer(NAME SOURCES ... [DEPS ...] CORPUS folder)
#   Preset fuzz: a libFuzzer program (run it with a folder of its own in front of the corpus). Otherwise: the
#   same function over every file of the committed corpus, as a test.
include_guard(GLOBAL)
include(GoogleTest)

add_library(neap_warnings INTERFACE)
target_compile_options(neap_warnings INTERFACE -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow
                                               -Wnon-virtual-dtor -Woverloaded-virtual)
if(NEAP_WERROR)
  target_compile_options(neap_warnings INTERFACE -Werror)
endif()

function(neap_add_module NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(neap_${NAME} STATIC ${ARG_SOURCES})
  add_library(neap::${NAME} ALIAS neap_${NAME})
  target_include_directories(neap_${NAME} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(neap_${NAME} PUBLIC ${ARG_DEPS} PRIVATE neap_warnings ${ARG_PRIVATE_DEPS})
  set_target_properties(neap_${NAME} PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(neap_add_test NAME)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT NEAP_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${NAME} PRIVATE NEAP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} neap_warnings GTest::gmock GTest::gtest GTest::gtest_main
                                        Threads::Threads)
  gtest_discover_tests(${NAME} TEST_PREFIX "${NAME}." EXTRA_ARGS ${ARG_ARGS} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

function(neap_add_fuzzer NAME)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPS" ${ARGN})
  if(NEAP_FUZZ)
    add_executable(${NAME} ${ARG_SOURCES})
    target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
  elseif(NEAP_TESTS)
    add_executable(${NAME} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/run_corpus.cpp)
    add_test(NAME ${NAME} COMMAND ${NAME} ${ARG_CORPUS})
    set_tests_properties(${NAME} PROPERTIES LABELS fuzz TIMEOUT 120)
  else()
    return()
  endif()
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} neap_warnings)
endfunction()
