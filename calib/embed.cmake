# Writes a file as a C array: cmake -DIN=sample.txt -DOUT=sample_text.c -DNAME=dq_sample_text -DHEADER=calib/sample.h -P embed.cmake
# Bytes as numbers, not a string literal: compilers need to accept only 4095 characters of one.
if(NOT IN OR NOT OUT OR NOT NAME OR NOT HEADER)
    message(FATAL_ERROR "embed.cmake needs -DIN=FILE, -DOUT=FILE, -DNAME=ARRAY and -DHEADER=FILE")
endif()
file(READ "${IN}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," array "${hex}")
string(REGEX REPLACE "(................................................................................)"
    "\\1\n" array "${array}")
# A char may be signed, and then values above 127 do not fit.
if(array MATCHES "0x[89a-f]")
    message(FATAL_ERROR "${IN}: only ASCII is embedded")
endif()
get_filename_component(from "${IN}" NAME)
file(WRITE "${OUT}" "/* Made from ${from} by calib/embed.cmake. */\n"
    "#include \"${HEADER}\"\n\n"
    "const char ${NAME}[] = {\n${array}0};\n"
    "const size_t ${NAME}_len = ${bytes};\n")
