# The calibration text as a C array, so that quantizing needs no file beside the program.
set(ESP_CALIBRATION_C ${CMAKE_CURRENT_BINARY_DIR}/calibration_tables.c)
set(ESP_CALIBRATION_TXT ${CMAKE_CURRENT_SOURCE_DIR}/models/calibration.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ESP_CALIBRATION_TXT})
if(NOT EXISTS ${ESP_CALIBRATION_C} OR ${ESP_CALIBRATION_TXT} IS_NEWER_THAN ${ESP_CALIBRATION_C})
    file(READ ${ESP_CALIBRATION_TXT} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    file(WRITE ${ESP_CALIBRATION_C} "#include \"quantize/calibration.h\"\n\nconst unsigned char esp_calibration_text[] = {${bytes}0};\n\
const size_t esp_calibration_text_len = sizeof esp_calibration_text - 1;\n")
endif()
list(APPEND LIB_SOURCES ${ESP_CALIBRATION_C})
