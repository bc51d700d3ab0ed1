# What `make install` puts where: libraries, headers, pkg-config and CMake descriptions, pages. Both descriptions find
# their prefix from their own place, so a DESTDIR or a moved tree works.
include(CMakePackageConfigHelpers)

install(TARGETS espalier_static espalier_shared espalier_dependencies EXPORT espalierTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/espalier DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY doc/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "man" EXCLUDE)

# ---- pkg-config -----------------------------------------------------------------------------------------------------
file(RELATIVE_PATH ESP_PC_PREFIX "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" ESP_PC_PREFIX ${ESP_PC_PREFIX})
string(REPLACE ";" ", " ESP_PC_MODULES "${ESP_MODULES}")
string(REPLACE ">=" " >= " ESP_PC_MODULES "${ESP_PC_MODULES}")
configure_file(cmake/espalier.pc.in espalier.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/espalier.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- CMake package --------------------------------------------------------------------------------------------------
set(ESP_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
configure_package_config_file(cmake/espalierConfig.cmake.in espalierConfig.cmake INSTALL_DESTINATION ${ESP_CMAKE_DIR})
write_basic_package_version_file(espalierConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/espalierConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/espalierConfigVersion.cmake
        DESTINATION ${ESP_CMAKE_DIR})
install(EXPORT espalierTargets NAMESPACE espalier:: DESTINATION ${ESP_CMAKE_DIR})

# ---- pages and completions ------------------------------------------------------------------------------------------
# Written pages come from doc/man. Generated ones, and shell completions, are put into build/*/man and
# build/*/completions by the program's own build rules; what is not there is not installed.
foreach(section 1 3 5 7)
    file(GLOB pages CONFIGURE_DEPENDS doc/man/*.${section})
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
    install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} OPTIONAL
            FILES_MATCHING PATTERN "*.${section}")
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/espalier.bash OPTIONAL RENAME espalier
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/espalier.zsh OPTIONAL RENAME _espalier
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/espalier.fish OPTIONAL
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
