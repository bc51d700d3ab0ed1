# CPU levels. A file's suffix names the instructions it may use; no other file gets such flags, so a stray instruction
# cannot reach an older CPU. Sources under kernels/x86 and kernels/arm are dropped on other machines.
set(ESP_FLAGS_avx2 -mavx2 -mfma -mf16c)
# prefetchw: part of every processor with AVX-512
set(ESP_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprfchw)
set(ESP_FLAGS_avx512vnni ${ESP_FLAGS_avx512} -mavx512vnni)
set(ESP_FLAGS_avx512bf16 ${ESP_FLAGS_avx512} -mavx512bf16)
set(ESP_FLAGS_avx512vbmi ${ESP_FLAGS_avx512vnni} -mavx512vbmi)
set(ESP_FLAGS_avx512amx ${ESP_FLAGS_avx512vbmi} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
set(ESP_FLAGS_neon "")
set(ESP_FLAGS_dotprod -march=armv8.2-a+dotprod)

function(esp_filter_cpu_sources var)
    set(list ${${var}})
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        list(FILTER list EXCLUDE REGEX "/kernels/x86/|_avx[0-9a-z]+\\.c$")
    endif()
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        list(FILTER list EXCLUDE REGEX "/kernels/arm/|_(neon|dotprod)\\.c$")
    endif()
    set(${var} ${list} PARENT_SCOPE)
endfunction()

function(esp_set_cpu_flags target)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
        if(source MATCHES "_(avx2|avx512|avx512vnni|avx512bf16|avx512vbmi|avx512amx|neon|dotprod)\\.c$")
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ESP_FLAGS_${CMAKE_MATCH_1}}")
        endif()
    endforeach()
    # Kernels under sanitizers. A build of kernels alone has all of its sanitizer (.ci/run ubsan). In a whole one what
    # reads weights, keys and states is as released (and the encoder's search), because nine tenths of the time of a test with
    # a model would go to looking at each of these loads: the backend says which memory such a kernel read and wrote
    # (base/watch.h). Fuzz targets are parsers.
    if(ESPALIER_SANITIZE)
        foreach(source IN LISTS sources)
            if(NOT source MATCHES "/kernels/|/quantize/viterbi_")
                continue()
            endif()
            if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # takes longer than all else about unrolled code; lines are known without
                set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-var-tracking)
            endif()
            if(ESPALIER_KERNELS_ONLY)
            elseif(ESPALIER_FUZZ OR source MATCHES "/(affine|attend|delta|dense|linear|trellis|viterbi)[^/]*$")
                set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all -O2)
            elseif(ESPALIER_SANITIZE MATCHES "undefined" AND source MATCHES "/kernels/(x86|arm)/")
                set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
            endif()
        endforeach()
    endif()
    # Conversions are checked everywhere but in kernels, where narrowing is the subject.
    foreach(source IN LISTS sources)
        if(NOT source MATCHES "/kernels/")
            set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Wconversion)
        endif()
    endforeach()
endfunction()

# Tells kernels.c which levels this build contains.
function(esp_define_cpu_kernels target)
    get_target_property(sources ${target} SOURCES)
    if(sources MATCHES "/kernels/x86/")
        target_compile_definitions(${target} PRIVATE ESP_HAVE_X86_KERNELS)
    endif()
    if(sources MATCHES "/kernels/arm/")
        target_compile_definitions(${target} PRIVATE ESP_HAVE_ARM_KERNELS)
    endif()
endfunction()
