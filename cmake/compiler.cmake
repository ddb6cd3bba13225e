# Included before project() and after it: what to install, in one line, where there is no C++ compiler or too old a one.
set(a2a_compilers "GCC 11 or newer, or Clang 16 or newer (Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install \
gcc-c++; Alpine: apk add g++; conda: conda install -c conda-forge gxx)")

if(NOT DEFINED CMAKE_CXX_COMPILER_ID)
  # CMake looks for the same names, and says more when it finds none. What was chosen is for CMake to judge.
  if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX} AND NOT CMAKE_TOOLCHAIN_FILE)
    find_program(A2A_SOME_COMPILER NAMES c++ CC g++ aCC cl bcc xlC icpx icx clang++)
    mark_as_advanced(A2A_SOME_COMPILER)
    if(NOT A2A_SOME_COMPILER)
      message(FATAL_ERROR "\n  a2a is built from C++20, and there is no C++ compiler. Install ${a2a_compilers}.\n")
    endif()
  endif()
elseif((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
       OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16))
  message(FATAL_ERROR "\n  a2a is built from C++20, and ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} \
${CMAKE_CXX_COMPILER_VERSION}. Install ${a2a_compilers}, and name it in the environment: CXX=g++-12.\n")
endif()
