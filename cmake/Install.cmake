include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tilewright")

# tilewright_install(target): makes the target part of the installed package, as tilewright::<name without prefix>.
function(tilewright_install target)
  string(REGEX REPLACE "^tilewright_" "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT tilewrightTargets)
endfunction()

tilewright_install(tilewright_options)
tilewright_install(tilewright_tilewright)
if(TARGET tilewright_emulator)
  tilewright_install(tilewright_emulator)
endif()
# tuning, which stands on bench, is for families of a user's own; nothing else needs it.
foreach(folder IN LISTS TILEWRIGHT_LIBRARY_FOLDERS ITEMS bench tuning)
  if(TARGET tilewright_${folder})
    tilewright_install(tilewright_${folder})
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tilewright/${folder}"
      FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
  endif()
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(TARGET tw)
  install(TARGETS tw)
endif()

install(EXPORT tilewrightTargets NAMESPACE tilewright:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/tilewrightConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tilewrightConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tilewrightConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/tilewrightConfig.cmake"
  "${PROJECT_BINARY_DIR}/tilewrightConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindxxHash.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/tilewrightKernels.cmake"
  DESTINATION "${package_dir}")
