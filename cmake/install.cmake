# The libraries, their headers and a CMake package. In a wheel all destinations lie below the Python package a2a.
include(CMakePackageConfigHelpers)

if(DEFINED SKBUILD)
  set(a2a_libdir lib)
  set(a2a_cmakedir share/cmake/a2a)
else()
  set(a2a_libdir ${CMAKE_INSTALL_LIBDIR})
  set(a2a_cmakedir ${CMAKE_INSTALL_LIBDIR}/cmake/a2a)
endif()

install(TARGETS a2a a2a_atb EXPORT a2aTargets LIBRARY DESTINATION ${a2a_libdir} COMPONENT dev)
install(EXPORT a2aTargets NAMESPACE a2a:: DESTINATION ${a2a_cmakedir} COMPONENT dev)
install(DIRECTORY src/cpp/a2a adapters/atb/include/a2a DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/a2aConfig.cmake.in a2aConfig.cmake INSTALL_DESTINATION ${a2a_cmakedir})
write_basic_package_version_file(a2aConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${CMAKE_CURRENT_BINARY_DIR}/a2aConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/a2aConfigVersion.cmake
  DESTINATION ${a2a_cmakedir}
  COMPONENT dev)
