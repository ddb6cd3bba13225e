# liba2a_atb: ATB's AllToAllV in C++. It needs nothing of liba2a but what is installed. As with the core, the C++ tests
# link the objects.
file(GLOB a2a_atb_sources CONFIGURE_DEPENDS adapters/atb/cpp/*.cc)
set(a2a_atb_include_dir ${CMAKE_CURRENT_SOURCE_DIR}/adapters/atb/include)
add_library(a2a_atb_objects OBJECT ${a2a_atb_sources})
target_include_directories(a2a_atb_objects PUBLIC ${a2a_atb_include_dir} ${a2a_include_dir})
target_compile_options(a2a_atb_objects PRIVATE -Wall -Wextra -Wshadow)
if(A2A_QUICK)
  target_precompile_headers(a2a_atb_objects PRIVATE ${a2a_precompiled})
endif()

add_library(a2a_atb SHARED $<TARGET_OBJECTS:a2a_atb_objects>)
add_library(a2a::atb ALIAS a2a_atb)
set_target_properties(a2a_atb PROPERTIES EXPORT_NAME atb)
target_include_directories(
  a2a_atb PUBLIC "$<BUILD_INTERFACE:${a2a_atb_include_dir}>" $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(a2a_atb PUBLIC a2a)
