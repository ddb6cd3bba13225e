# The extension module a2a._core, built only for a wheel. Cython, cython-cmake and apache-tvm-ffi are build requirements
# in pyproject.toml.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module NumPy)
find_package(Cython 3.2 MODULE REQUIRED)
include(UseCython)

# dlpack.h 1.3 comes from the apache-tvm-ffi wheel. The package is found without importing it.
if(NOT DEFINED A2A_DLPACK_INCLUDE_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE A2A_DLPACK_INCLUDE_DIR
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()

# Cython writes the path of its sources as seen from the build directory into the module, where tracebacks show it. With
# copies inside the build directory this is src/pyx/..., whatever machine the wheel was built on.
file(GLOB pyx_sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" src/pyx/*.pyx src/pyx/*.pxd src/pyx/*.pxi)
foreach(source IN LISTS pyx_sources)
  configure_file(${source} ${source} COPYONLY)
endforeach()
cython_transpile(
  "${CMAKE_CURRENT_BINARY_DIR}/src/pyx/_core.pyx"
  LANGUAGE CXX
  MODULE_NAME a2a._core
  OUTPUT _core.cxx
  OUTPUT_VARIABLE core_cxx)
python_add_library(_core MODULE "${core_cxx}" WITH_SOABI)
target_include_directories(_core SYSTEM PRIVATE "${A2A_DLPACK_INCLUDE_DIR}")
target_compile_definitions(_core PRIVATE A2A_VERSION="${A2A_VERSION}" NPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION)
target_link_libraries(_core PRIVATE a2a::a2a Python::NumPy)
set_target_properties(_core PROPERTIES INSTALL_RPATH "\$ORIGIN/lib")
install(TARGETS _core DESTINATION . COMPONENT python)
