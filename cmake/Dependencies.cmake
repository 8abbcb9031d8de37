# tw_require(fmt libfmt-dev ...): find_package(fmt ...), or a message that names the Debian package to install.
macro(tw_require package debian_package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "Tilewright needs ${package}, which was not found.\n"
      "Run scripts/setup.sh, or: apt-get install ${debian_package}")
  endif()
endmacro()

find_package(Threads REQUIRED)
tw_require(fmt libfmt-dev)
tw_require(CLI11 libcli11-dev)
tw_require(nlohmann_json nlohmann-json3-dev)
tw_require(xxHash libxxhash-dev)
set(Boost_USE_STATIC_LIBS ON)
tw_require(Boost libboost-context-dev COMPONENTS context)
if(TILEWRIGHT_TESTS)
  tw_require(GTest libgtest-dev)
endif()
