# -DA2A_SANITIZE=address,undefined or =thread instruments everything that is compiled here. What a sanitizer finds ends
# the program, so that CTest sees it. Instrumented code is slow to compile: -O1 and line numbers alone are three times
# as fast as -O3 -g.
if(A2A_SANITIZE)
  add_compile_options(-O1 -g1 -fsanitize=${A2A_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${A2A_SANITIZE})
  add_compile_definitions(A2A_SANITIZED)
endif()
if(A2A_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns about every atomic_thread_fence, which ThreadSanitizer does not model.
  add_compile_options(-Wno-tsan)
endif()
