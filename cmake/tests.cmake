# Tests: every tests/ROOM/NAME_test.c is one cmocka program and one ctest entry called ROOM.NAME. Every fuzz/NAME_fuzz.c
# is built twice: as a plain program that runs its corpus (ctest fuzz.NAME) and, with ESPALIER_FUZZ, as a libFuzzer target.
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

file(GLOB TEST_SUPPORT CONFIGURE_DEPENDS tests/support/*.c)
add_library(espalier_test_support STATIC ${TEST_SUPPORT} tests/support/support.h)
set_target_properties(espalier_test_support PROPERTIES LINKER_LANGUAGE C)
target_include_directories(espalier_test_support PUBLIC tests)
target_link_libraries(espalier_test_support PUBLIC espalier_static espalier_objects_usage PkgConfig::CMOCKA)
target_compile_definitions(espalier_test_support PUBLIC ESP_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")

# Clients of the server: plain ones, processes, and the load generator of bench --serve.
file(GLOB CLIENT_SOURCES CONFIGURE_DEPENDS tests/serve/client/*.c src/program/load*.c src/program/sandbox.c
     tests/program/spawn/*.c)
add_library(espalier_test_client STATIC ${CLIENT_SOURCES})
target_link_libraries(espalier_test_client PUBLIC espalier_test_support espalier_serve PkgConfig::ESP_SERVE_EVENT
                      PRIVATE espalier_program_dependencies)
target_compile_definitions(espalier_test_client PRIVATE ESP_PROGRAM="$<TARGET_FILE:espalier>")

file(GLOB TEST_SOURCES CONFIGURE_DEPENDS tests/*/*_test.c)
foreach(source IN LISTS TEST_SOURCES)
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(dir ${source} DIRECTORY)
    get_filename_component(room ${dir} NAME)
    string(REGEX REPLACE "_test$" "" short ${name})
    add_executable(test_${room}_${short} ${source})
    target_link_libraries(test_${room}_${short} PRIVATE espalier_test_support)
    add_test(NAME ${room}.${short} COMMAND test_${room}_${short} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    set_tests_properties(${room}.${short} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
    if(room STREQUAL serve)
        target_link_libraries(test_${room}_${short} PRIVATE espalier_test_client)
        target_compile_definitions(test_${room}_${short} PRIVATE ESP_PROGRAM="$<TARGET_FILE:espalier>")
        add_dependencies(test_${room}_${short} espalier)
    endif()
endforeach()

# Tests of the CPU that say the same of another device; they end with 77 where there is none.
if(ESP_HAVE_CUDA)
    foreach(pair state.oracle model.tiny_text engine.demo engine.spec engine.adapter engine.schemes engine.few quantize.device)
        string(REPLACE "." "_" short ${pair})
        add_test(NAME cuda.${short} COMMAND test_${short} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
        set_tests_properties(cuda.${short} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 ENVIRONMENT ESPALIER_TEST_DEVICE=cuda)
    endforeach()
endif()

file(GLOB KCHECK_SOURCES CONFIGURE_DEPENDS tests/kcheck/*.c)
if(KCHECK_SOURCES)
    add_executable(kcheck ${KCHECK_SOURCES})
    target_link_libraries(kcheck PRIVATE espalier_test_support)
    add_test(NAME kcheck COMMAND kcheck)
    set_tests_properties(kcheck PROPERTIES TIMEOUT 900)
endif()

file(GLOB FUZZ_SOURCES CONFIGURE_DEPENDS fuzz/*_fuzz.c)
set(FUZZ_MORE_reply src/program/load_reply.c) # of the program, which is no library
foreach(source IN LISTS FUZZ_SOURCES)
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" short ${name})
    add_executable(corpus_${short} ${source} fuzz/corpus_main.c ${FUZZ_MORE_${short}})
    target_link_libraries(corpus_${short} PRIVATE espalier_serve espalier_static espalier_objects_usage PkgConfig::ESP_SERVE_EVENT)
    target_compile_definitions(corpus_${short} PRIVATE ESP_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
    add_test(NAME fuzz.${short} COMMAND corpus_${short} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${short})
    if(ESPALIER_FUZZ)
        add_executable(fuzz_${short} ${source} ${FUZZ_MORE_${short}})
        target_link_libraries(fuzz_${short} PRIVATE espalier_serve espalier_static espalier_objects_usage
                              PkgConfig::ESP_SERVE_EVENT -fsanitize=fuzzer)
        target_compile_definitions(fuzz_${short} PRIVATE ESP_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
endforeach()

add_executable(bench_kv EXCLUDE_FROM_ALL bench/kv_bench.c)
target_link_libraries(bench_kv PRIVATE espalier_static espalier_objects_usage)

add_executable(bench_kv_step EXCLUDE_FROM_ALL bench/kv_step.c)
target_link_libraries(bench_kv_step PRIVATE espalier_static espalier_objects_usage)

add_executable(bench_kv_kl EXCLUDE_FROM_ALL bench/kv_kl.c)
target_link_libraries(bench_kv_kl PRIVATE espalier_static espalier_objects_usage)

# Figures for doc/structured-output.md: what a mask costs. Not a test.
add_executable(grammar_bench bench/grammar_bench.c)
target_link_libraries(grammar_bench PRIVATE espalier_static espalier_objects_usage)

# The web page in a browser; ends with 77 where Python, Chromium or Selenium is not installed.
add_test(NAME serve.page COMMAND sh -c "command -v python3 >/dev/null || exit 77
PATH=/usr/bin:$PATH exec python3 -B tests/serve/page_test.py $<TARGET_FILE:espalier> models/demo"
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
set_tests_properties(serve.page PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)

# Real clients of hosted models; ends with 77 where their packages are missing (`.ci/run clients` puts them below build/).
add_test(NAME serve.clients COMMAND sh -c "p=build/clients-venv/bin/python
[ -x $p ] || p=$(command -v python3) || { echo 'python3 is missing: skipped'; exit 77; }
exec $p -B tests/serve/clients_test.py $<TARGET_FILE:espalier> models/demo"
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
set_tests_properties(serve.clients PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)

# Programs with several threads are labelled, for the thread sanitizer (target tests_of_threads builds them). Left out: a
# browser and clients whose own limits are too short for a server 30 times slower, single clients that ask one thing after
# the other, and repetitions over another device.
get_property(all_tests DIRECTORY PROPERTY TESTS)
add_custom_target(tests_of_threads)
foreach(test IN LISTS all_tests)
    if(test MATCHES "pool|thread|queue|service|serve|http|engine.faults|engine.adapter"
       AND NOT test MATCHES "serve.(page|clients|bench|golden|error|replay|history|schemas)|_device$")
        set_tests_properties(${test} PROPERTIES LABELS threads)
        string(REPLACE "." "_" short ${test})
        foreach(target test_${short} corpus_${short}) # fuzz.NAME is corpus_NAME
            string(REPLACE corpus_fuzz_ corpus_ target ${target})
            if(TARGET ${target})
                add_dependencies(tests_of_threads ${target})
            endif()
        endforeach()
    endif()
endforeach()
