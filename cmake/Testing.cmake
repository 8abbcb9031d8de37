include_guard()

# tw_add_test(NAME name SOURCES file... [LIBRARIES target...] [TIMEOUT seconds] [COST seconds])
# One GoogleTest program, one ctest entry of the same name. It runs in the project root: "tests/golden/..." is a path.
# Long ones run first, so that none is left to run alone: COST is about what it takes where it is known, else a tenth of
# the limit.
function(tw_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 test "" "NAME;TIMEOUT;COST" "SOURCES;LIBRARIES")
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)  # several times what any takes: others may share the cores
  endif()
  if(NOT test_COST)
    math(EXPR test_COST "${test_TIMEOUT} / 10")
  endif()
  add_executable(${test_NAME} ${test_SOURCES})
  target_link_libraries(${test_NAME} PRIVATE ${test_LIBRARIES} tilewright_test_support)
  add_test(NAME ${test_NAME} COMMAND ${test_NAME} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${test_NAME} PROPERTIES
    TIMEOUT ${test_TIMEOUT}
    COST ${test_COST}
    ENVIRONMENT "TW_READ_SITES_DIR=${TILEWRIGHT_READ_SITES_DIR}"
    FIXTURES_REQUIRED read_sites)
  set_property(GLOBAL APPEND PROPERTY TILEWRIGHT_TEST_NAMES ${test_NAME})
endfunction()

# tw_add_error_coverage(): the ctest entry that fails when a check site exists whose message no test has read. Call it
# after all tests have been added. It judges nothing after a partial run (ctest -R): then it is skipped.
function(tw_add_error_coverage)
  get_property(test_names GLOBAL PROPERTY TILEWRIGHT_TEST_NAMES)
  add_test(NAME read_sites_begin COMMAND ${CMAKE_COMMAND} -E rm -rf "${TILEWRIGHT_READ_SITES_DIR}")
  set_tests_properties(read_sites_begin PROPERTIES FIXTURES_SETUP read_sites)

  # Every object of every library: from an archive, the linker takes only those that this program calls.
  add_executable(error_coverage "${PROJECT_SOURCE_DIR}/tests/support/error_coverage.cpp")
  foreach(folder IN LISTS TILEWRIGHT_LIBRARY_FOLDERS ITEMS emulator tools)
    if(TARGET tilewright_${folder})
      target_sources(error_coverage PRIVATE $<TARGET_OBJECTS:tilewright_${folder}>)
      target_link_libraries(error_coverage PRIVATE tilewright_${folder})
    endif()
  endforeach()

  add_test(NAME error_coverage COMMAND error_coverage "${TILEWRIGHT_READ_SITES_DIR}" ${test_names}
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(error_coverage PROPERTIES DEPENDS "${test_names}" SKIP_RETURN_CODE 77)
endfunction()

# Where each test notes the sites whose message it has read, and that it has passed.
set(TILEWRIGHT_READ_SITES_DIR "${PROJECT_BINARY_DIR}/read_sites")
