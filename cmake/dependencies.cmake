# Third-party libraries of the library, found by pkg-config; doc/dependencies.md says what each is for. This list also makes
# the installed pkg-config and CMake descriptions; scripts/checks/deps.py compares it with scripts/deps.sh and the page.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
set(ESP_MODULES jansson>=2.13 libpcre2-8>=10.40 libutf8proc>=2.6 libxxhash>=0.8.0)

add_library(espalier_dependencies INTERFACE)
foreach(module IN LISTS ESP_MODULES)
    string(REGEX REPLACE ">=.*" "" name ${module})
    string(MAKE_C_IDENTIFIER "ESP_${name}" variable)
    pkg_check_modules(${variable} REQUIRED IMPORTED_TARGET ${module})
    target_link_libraries(espalier_dependencies INTERFACE PkgConfig::${variable})
endforeach()
target_link_libraries(espalier_dependencies INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})

# Memory nodes of large machines: hwloc's header here, the library when it is asked for (src/base/nodes.c).
pkg_check_modules(HWLOC hwloc>=2.0)

# The program alone: line editing, and a filter of system calls; it is built without what is missing.
pkg_check_modules(LIBEDIT IMPORTED_TARGET libedit)
add_library(espalier_program_dependencies INTERFACE)
if(LIBEDIT_FOUND)
    target_link_libraries(espalier_program_dependencies INTERFACE PkgConfig::LIBEDIT)
    target_compile_definitions(espalier_program_dependencies INTERFACE ESP_HAVE_LIBEDIT)
endif()
pkg_check_modules(LIBSECCOMP IMPORTED_TARGET libseccomp>=2.5)
if(LIBSECCOMP_FOUND)
    target_link_libraries(espalier_program_dependencies INTERFACE PkgConfig::LIBSECCOMP)
    target_compile_definitions(espalier_program_dependencies INTERFACE ESP_HAVE_SECCOMP)
endif()
