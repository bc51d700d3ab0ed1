# The CUDA backend: espalier_cuda.so, loaded at run time (src/backend/cuda/open.c), so nothing else links or needs CUDA. nvcc
# compiles the .cu files; the host side is C like everything else. The CUDA runtime is linked statically.
set(ESPALIER_CUDA OFF CACHE STRING "CUDA backend: AUTO builds it when nvcc is there, ON requires it, OFF leaves it out")
set(ESPALIER_CUDA_ARCHS "90a" CACHE STRING "Compute capabilities to build code for; the preset cuda names all of a release")
set_property(CACHE ESPALIER_CUDA PROPERTY STRINGS AUTO ON OFF)

set(ESP_HAVE_CUDA FALSE)
if(NOT ESPALIER_CUDA STREQUAL "OFF")
    find_program(ESP_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(ESP_NVCC AND NOT CMAKE_CROSSCOMPILING AND NOT ESPALIER_SANITIZE)
        get_filename_component(ESP_CUDA_ROOT ${ESP_NVCC} REALPATH)
        get_filename_component(ESP_CUDA_ROOT ${ESP_CUDA_ROOT}/../.. ABSOLUTE)
        find_library(ESP_CUDART cudart_static PATHS ${ESP_CUDA_ROOT}/lib64 ${ESP_CUDA_ROOT}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
    endif()
    if(ESP_NVCC AND ESP_CUDART)
        set(ESP_HAVE_CUDA TRUE)
    elseif(ESPALIER_CUDA STREQUAL "ON")
        message(FATAL_ERROR "ESPALIER_CUDA is ON, but nvcc or its static runtime was not found (native builds without sanitizers only)")
    endif()
endif()
message(STATUS "CUDA backend: ${ESP_HAVE_CUDA}")
if(NOT ESP_HAVE_CUDA)
    return()
endif()

set(ESP_GENCODE "")
foreach(arch IN LISTS ESPALIER_CUDA_ARCHS)
    list(APPEND ESP_GENCODE -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
file(GLOB ESP_CU CONFIGURE_DEPENDS src/backend/cuda/plugin/*.cu)
set(ESP_CU_OBJECTS "")
foreach(source IN LISTS ESP_CU)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
        COMMAND ${ESP_NVCC} -std=c++17 -O3 -lineinfo ${ESP_GENCODE} -I${CMAKE_CURRENT_SOURCE_DIR}/src -I${CMAKE_CURRENT_SOURCE_DIR}/include
                -Xcompiler=-fPIC,-fvisibility=hidden -diag-suppress 186,128 -MD -MF ${object}.d -c ${source} -o ${object}
        DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND ESP_CU_OBJECTS ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)

file(GLOB ESP_CUDA_HOST CONFIGURE_DEPENDS src/backend/cuda/plugin/*.c)
# Its own copy of the few pieces it uses: the object is complete by itself, whoever loads it.
add_library(espalier_cuda MODULE ${ESP_CU_OBJECTS} ${ESP_CUDA_HOST} src/backend/place.c src/backend/check.c src/base/status.c
            src/base/mem.c src/base/arena.c src/base/utf8.c src/formats/format.c src/formats/affine.c src/formats/half.c src/formats/trellis.c src/formats/kv.c src/formats/recurrent.c src/formats/turboquant.c
            src/formats/turboquant_tables.c src/graph/lora.c
            src/graph/tape.c src/graph/layout.c)
set_target_properties(espalier_cuda PROPERTIES PREFIX "" OUTPUT_NAME espalier_cuda)
target_include_directories(espalier_cuda PRIVATE src include)
target_include_directories(espalier_cuda SYSTEM PRIVATE ${ESP_CUDA_ROOT}/include)
target_compile_definitions(espalier_cuda PRIVATE _GNU_SOURCE $<$<BOOL:${ESPALIER_CHECKS}>:ESP_CHECKS>)
target_link_libraries(espalier_cuda PRIVATE espalier_warnings ${ESP_CUDART} ${CMAKE_DL_LIBS} Threads::Threads rt m stdc++)
target_link_options(espalier_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
install(TARGETS espalier_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/espalier)
add_executable(bench_cuda EXCLUDE_FROM_ALL bench/cuda_bench.c)
target_link_libraries(bench_cuda PRIVATE espalier_static espalier_objects_usage)
