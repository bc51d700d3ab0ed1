# Third-party libraries, found by pkg-config; doc/dependencies.md says what each is for.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc>=2.6)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash>=0.8.0)
add_library(espalier_dependencies INTERFACE)
target_link_libraries(espalier_dependencies INTERFACE PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::UTF8PROC
                      PkgConfig::XXHASH Threads::Threads m)
# The program alone: line editing.
pkg_check_modules(LIBEDIT IMPORTED_TARGET libedit)
add_library(espalier_program_dependencies INTERFACE)
if(LIBEDIT_FOUND)
    target_link_libraries(espalier_program_dependencies INTERFACE PkgConfig::LIBEDIT)
    target_compile_definitions(espalier_program_dependencies INTERFACE ESP_HAVE_LIBEDIT)
endif()
