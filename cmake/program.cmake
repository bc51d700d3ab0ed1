# What belongs to the program beside its sources: manual pages and completions that it writes itself, the build's commit,
# and for tests a second program over a stand-in library (tests/program/double) and the examples.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
                OUTPUT_VARIABLE ESP_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
    set(ESP_COMMIT "unknown")
endif()
set_source_files_properties(src/program/main.c PROPERTIES COMPILE_DEFINITIONS ESP_COMMIT="${ESP_COMMIT}")
set_property(TARGET espalier PROPERTY COMPILE_OPTIONS -Wconversion)

# ---- pages and completions ------------------------------------------------------------------------------------------
set(man ${CMAKE_CURRENT_BINARY_DIR}/man)
set(completions ${CMAKE_CURRENT_BINARY_DIR}/completions)
file(MAKE_DIRECTORY ${man} ${completions})
file(STRINGS src/program/verbs.def verb_lines REGEX "^V\\([A-Z]+, \"")
set(pages ${man}/espalier.1)
set(commands COMMAND espalier --man espalier > ${man}/espalier.1)
foreach(line IN LISTS verb_lines)
    string(REGEX MATCH "\"([a-z]+)\"" unused "${line}")
    list(APPEND pages ${man}/espalier-${CMAKE_MATCH_1}.1)
    list(APPEND commands COMMAND espalier --man ${CMAKE_MATCH_1} > ${man}/espalier-${CMAKE_MATCH_1}.1)
endforeach()
foreach(shell bash zsh fish)
    list(APPEND pages ${completions}/espalier.${shell})
    list(APPEND commands COMMAND espalier completion ${shell} > ${completions}/espalier.${shell})
endforeach()
add_custom_command(OUTPUT ${pages} ${commands} DEPENDS espalier COMMENT "Manual pages and completions")
add_custom_target(espalier_pages ALL DEPENDS ${pages})

# ---- tests ----------------------------------------------------------------------------------------------------------
if(NOT ESPALIER_TESTS)
    return()
endif()
file(GLOB DOUBLE_SOURCES CONFIGURE_DEPENDS tests/program/double/*.c)
add_executable(espalier_double ${PROGRAM_SOURCES} ${DOUBLE_SOURCES} src/serve/guard.c src/serve/http_address.c
               src/serve/http_listen.c) # what --isolate needs without a server
target_include_directories(espalier_double PRIVATE src include)
target_compile_definitions(espalier_double PRIVATE _GNU_SOURCE ESP_VERSION="${PROJECT_VERSION}")
target_link_libraries(espalier_double PRIVATE espalier_static espalier_program_dependencies espalier_warnings
                      PkgConfig::ESP_SERVE_EVENT)
file(GLOB PROGRAM_TESTS CONFIGURE_DEPENDS tests/program/*_test.c)
foreach(source IN LISTS PROGRAM_TESTS)
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" short ${name})
    target_sources(test_program_${short} PRIVATE tests/program/spawn/spawn.c src/program/text_stream.c
                   src/program/tool_text.c src/program/npy.c src/program/recall.c src/program/options.c src/program/options_value.c)
    target_compile_definitions(test_program_${short} PRIVATE ESP_PROGRAM="$<TARGET_FILE:espalier>"
                               ESP_PROGRAM_DOUBLE="$<TARGET_FILE:espalier_double>"
                               $<$<BOOL:${LIBEDIT_FOUND}>:ESP_HAVE_LIBEDIT>)
    add_dependencies(test_program_${short} espalier espalier_double)
endforeach()

# CUDA devices for tests: the CPU under their name.
add_library(espalier_cuda_double MODULE tests/program/device/cuda_double.c)
set_target_properties(espalier_cuda_double PROPERTIES PREFIX "")
target_compile_definitions(espalier_cuda_double PRIVATE _GNU_SOURCE)
target_link_libraries(espalier_cuda_double PRIVATE espalier_static espalier_objects_usage espalier_warnings)
target_link_options(espalier_cuda_double PRIVATE -Wl,--exclude-libs,ALL)
foreach(short device quantize)
    target_compile_definitions(test_program_${short} PRIVATE ESP_CUDA_DOUBLE="$<TARGET_FILE:espalier_cuda_double>")
    add_dependencies(test_program_${short} espalier_cuda_double)
endforeach()
foreach(short spec spec_state adapter few) # drafts where memory is not the host's own
    add_test(NAME engine.${short}_device COMMAND test_engine_${short} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    set_tests_properties(engine.${short}_device PROPERTIES TIMEOUT 900 ENVIRONMENT
                         "ESPALIER_TEST_DEVICE=cuda;ESPALIER_CUDA_LIBRARY=$<TARGET_FILE:espalier_cuda_double>")
    add_dependencies(test_engine_${short} espalier_cuda_double)
endforeach()
set_tests_properties(quantize.device PROPERTIES ENVIRONMENT "ESPALIER_CUDA_LIBRARY=$<TARGET_FILE:espalier_cuda_double>")
add_dependencies(test_quantize_device espalier_cuda_double)

# Examples see the public header alone and are C99; each is a test on the bundled model.
file(GLOB EXAMPLES CONFIGURE_DEPENDS examples/*.c)
foreach(source IN LISTS EXAMPLES)
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    target_link_libraries(example_${name} PRIVATE espalier_static espalier_warnings)
    set_target_properties(example_${name} PROPERTIES C_STANDARD 99 OUTPUT_NAME example_${name})
endforeach()
add_test(NAME examples.complete COMMAND example_complete models/demo "Once upon a time"
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
add_test(NAME examples.chat COMMAND sh -c "printf 'Spell: dog\\nRepeat: red\\n' | $<TARGET_FILE:example_chat> models/demo"
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
add_test(NAME examples.batch COMMAND example_batch models/demo "Repeat: red" "Repeat: red blue" "Spell: dog"
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
add_test(NAME examples.fork_rewind COMMAND example_fork_rewind models/demo WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
