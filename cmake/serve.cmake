# The server: a library of its own, so that libespalier needs neither libevent nor a database. The program links it; its tests
# and fuzz target too.
pkg_check_modules(ESP_SERVE_EVENT REQUIRED IMPORTED_TARGET libevent_core>=2.1.12)
pkg_check_modules(ESP_SERVE_SQLITE REQUIRED IMPORTED_TARGET sqlite3>=3.34)

include(cmake/page.cmake)
file(GLOB SERVE_SOURCES CONFIGURE_DEPENDS src/serve/*.c)
add_library(espalier_serve STATIC ${SERVE_SOURCES} ${ESP_PAGE_C})
target_compile_options(espalier_serve PRIVATE -Wconversion)
target_link_libraries(espalier_serve PUBLIC espalier_static PRIVATE espalier_objects_usage PkgConfig::ESP_SERVE_EVENT
                      PkgConfig::ESP_SERVE_SQLITE)
target_link_libraries(espalier PRIVATE espalier_serve PkgConfig::ESP_SERVE_EVENT) # bench --serve has clients on the same loop
