# The kernels and their checker alone, static and free of third-party libraries, so that they cross-compile with a bare
# toolchain and run under an emulated CPU:
#   cmake -B build/arm64 -DESPALIER_KERNELS_ONLY=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
#         -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64
#   cmake --build build/arm64 && ctest --test-dir build/arm64
file(GLOB_RECURSE KERNEL_SOURCES CONFIGURE_DEPENDS src/base/*.c src/formats/*.c src/kernels/*.c)
file(GLOB ENCODER_SOURCES CONFIGURE_DEPENDS src/quantize/viterbi*.c) # the encoder's vector code needs formats alone
list(APPEND KERNEL_SOURCES ${ENCODER_SOURCES})
list(FILTER KERNEL_SOURCES EXCLUDE REGEX "/base/json\\.c$") # jansson
esp_filter_cpu_sources(KERNEL_SOURCES)
file(GLOB KCHECK_SOURCES CONFIGURE_DEPENDS tests/kcheck/*.c)
find_package(Threads REQUIRED)

add_library(espalier_kernels STATIC ${KERNEL_SOURCES})
target_include_directories(espalier_kernels PUBLIC include src)
target_compile_definitions(espalier_kernels PUBLIC _GNU_SOURCE $<$<BOOL:${ESPALIER_CHECKS}>:ESP_CHECKS>
                           PRIVATE ESP_VERSION="${PROJECT_VERSION}")
target_link_libraries(espalier_kernels PUBLIC espalier_warnings Threads::Threads m)
esp_set_cpu_flags(espalier_kernels)
esp_define_cpu_kernels(espalier_kernels)

add_executable(kcheck ${KCHECK_SOURCES})
target_link_libraries(kcheck PRIVATE espalier_kernels -static)
enable_testing()
add_test(NAME kcheck COMMAND kcheck)
set_tests_properties(kcheck PROPERTIES TIMEOUT 1800)
