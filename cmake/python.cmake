# The extension modules a2a._core and a2a.atb._binding, built only for a wheel. Cython, cython-cmake and apache-tvm-ffi are
# build requirements in pyproject.toml.
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
file(GLOB pyx_sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" src/pyx/*.pyx src/pyx/*.pxd src/pyx/*.pxi
     adapters/*/pyx/*.pyx adapters/*/pyx/*.pxd)
foreach(source IN LISTS pyx_sources)
  configure_file(${source} ${source} COPYONLY)
endforeach()

# The methods of the table of collectives, the stub of the module with them, and the operations.
set_property(
  DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/pyx/generate.py src/pyx/collectives.pyi src/pyx/_core.pyi
                            src/cpp/a2a/operations.h)
execute_process(
  COMMAND "${Python_EXECUTABLE}" src/pyx/generate.py "${CMAKE_CURRENT_BINARY_DIR}/src/pyx"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" COMMAND_ERROR_IS_FATAL ANY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/src/pyx/_core.pyi" DESTINATION . COMPONENT python)

# Other modules look for what a2a._core offers them by its full name.
configure_file(src/pyx/_core.pxd src/pyx/a2a/_core.pxd COPYONLY)

# The module with this name and this source, which links these libraries. It stands in `folder`, below the package, and
# finds them in `libraries_from_there`.
function(a2a_add_extension name source folder libraries_from_there)
  string(REGEX MATCH "[^.]+$" target ${name})
  cython_transpile(
    "${CMAKE_CURRENT_BINARY_DIR}/${source}"
    LANGUAGE CXX
    MODULE_NAME ${name}
    INCLUDE_DIRECTORIES "${CMAKE_CURRENT_BINARY_DIR}/src/pyx"
    OUTPUT ${target}.cxx
    OUTPUT_VARIABLE generated)
  python_add_library(${target} MODULE "${generated}" WITH_SOABI)
  get_filename_component(own_folder ${source} DIRECTORY)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src/pyx" "${PROJECT_SOURCE_DIR}/${own_folder}")
  target_include_directories(${target} SYSTEM PRIVATE "${A2A_DLPACK_INCLUDE_DIR}")
  target_link_libraries(${target} PRIVATE ${ARGN})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "\$ORIGIN/${libraries_from_there}")
  install(TARGETS ${target} DESTINATION ${folder} COMPONENT python)
endfunction()

a2a_add_extension(a2a._core src/pyx/_core.pyx . lib a2a::a2a Python::NumPy)
file(GLOB_RECURSE pyx_cpp_sources CONFIGURE_DEPENDS src/pyx/cpp/*.cc)
target_sources(_core PRIVATE ${pyx_cpp_sources})
target_compile_definitions(_core PRIVATE A2A_VERSION="${A2A_VERSION}" NPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION)
a2a_add_extension(a2a.atb._binding adapters/atb/pyx/_binding.pyx atb ../lib a2a::atb)
