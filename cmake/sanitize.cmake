# -DA2A_SANITIZE=address,undefined or =thread instruments everything that is compiled here. Memory errors end the
# program, so that CTest sees them.
if(A2A_SANITIZE)
  add_compile_options(-fsanitize=${A2A_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${A2A_SANITIZE})
  add_compile_definitions(A2A_SANITIZED)
endif()
if(A2A_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns about every atomic_thread_fence, which ThreadSanitizer does not model.
  add_compile_options(-Wno-tsan)
endif()
