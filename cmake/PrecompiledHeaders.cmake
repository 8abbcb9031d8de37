# Headers of the standard library and of other packages, which are a third of a first build, are compiled once for all
# libraries, once for all programs and once for all tests. ccache, where there is one, does better from the second build
# on, and does not go together with them.
include_guard()

if(CCACHE)
  set(precompile OFF)
else()
  set(precompile ON)
endif()
option(TILEWRIGHT_PRECOMPILE "Precompile the headers of other packages" ${precompile})
if(TILEWRIGHT_PRECOMPILE)
  # That they come from headers of the system is lost, and with it that what g++ 12 warns of there falsely is not said.
  add_compile_options(-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# The targets of a kind below a folder of the source tree.
function(tw_targets_below folder kind result)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  set(found)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL kind)
      list(APPEND found ${target})
    endif()
  endforeach()
  get_property(below DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS below)
    tw_targets_below("${subfolder}" ${kind} more)
    list(APPEND found ${more})
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# tw_precompile(targets... HEADERS header...): the first compiles them, the others take them from there. Programs that
# export their symbols are compiled with a macro of their own, so that they share nothing.
function(tw_precompile)
  cmake_parse_arguments(PARSE_ARGV 0 all "" "" "HEADERS")
  set(first)
  foreach(target IN LISTS all_UNPARSED_ARGUMENTS)
    get_target_property(exports ${target} ENABLE_EXPORTS)
    if(exports OR NOT first)
      target_precompile_headers(${target} PRIVATE ${all_HEADERS})
      if(NOT exports)
        set(first ${target})
      endif()
    else()
      target_precompile_headers(${target} REUSE_FROM ${first})
    endif()
  endforeach()
endfunction()

# Call it after all targets have been added.
function(tw_precompile_headers)
  if(NOT TILEWRIGHT_PRECOMPILE)
    return()
  endif()
  set(headers <algorithm> <array> <functional> <map> <memory> <optional> <random> <set> <span> <string> <unordered_map>
    <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
  tw_targets_below("${PROJECT_SOURCE_DIR}" STATIC_LIBRARY libraries)
  tw_targets_below("${PROJECT_SOURCE_DIR}" EXECUTABLE programs)
  if(TILEWRIGHT_TESTS)
    tw_targets_below("${PROJECT_SOURCE_DIR}/tests" EXECUTABLE all_of_tests)  # compiled with flags of their own
    list(REMOVE_ITEM programs ${all_of_tests})
    list(REMOVE_ITEM libraries tilewright_test_support)
    get_property(tests GLOBAL PROPERTY TILEWRIGHT_TEST_NAMES)
    tw_precompile(${tests} HEADERS ${headers} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  tw_precompile(${libraries} HEADERS ${headers})
  tw_precompile(${programs} HEADERS ${headers} <CLI/CLI.hpp> <nlohmann/json.hpp>)
endfunction()
