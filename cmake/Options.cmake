# tilewright_options: what every target of this project is compiled with. Folders link it PUBLIC.
add_library(tilewright_options INTERFACE)
add_library(tilewright::options ALIAS tilewright_options)

target_compile_features(tilewright_options INTERFACE cxx_std_20)

# "dsl/expr.h" is written from the project root, <tilewright/dsl.h> from include/; both also work when installed.
target_include_directories(tilewright_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tilewright>)

# Paths in messages begin at the project root, also where ccache (base_dir) hands the compiler relative ones.
file(RELATIVE_PATH path_from_build "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}")

# Nobody replaces a function of ours from another library, so that calls within a file need no detour.
# No contraction: the host computes references, whose roundings must be the ones that the source says.
target_compile_options(tilewright_options INTERFACE
  $<BUILD_INTERFACE:-Wall>
  $<BUILD_INTERFACE:-Wextra>
  $<BUILD_INTERFACE:$<$<BOOL:${TILEWRIGHT_WERROR}>:-Werror>>
  $<BUILD_INTERFACE:-ffp-contract=off>
  $<BUILD_INTERFACE:-fno-semantic-interposition>
  $<BUILD_INTERFACE:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>
  $<BUILD_INTERFACE:-fmacro-prefix-map=${path_from_build}=>)

# A portable binary needs glibc, and what lies beside it or in ../lib. Debian's fmt is a shared library only, so that a
# portable build compiles it in instead.
if(TILEWRIGHT_PORTABLE)
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
  target_link_options(tilewright_options INTERFACE
    $<BUILD_INTERFACE:-static-libstdc++> $<BUILD_INTERFACE:-static-libgcc> $<BUILD_INTERFACE:-Wl,--as-needed>)
  set(CMAKE_BUILD_RPATH "$ORIGIN" "$ORIGIN/../lib")
  set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../lib")
endif()
