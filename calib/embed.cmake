# Writes a file as a C array: cmake -DIN=sample.txt -DOUT=sample_text.c -P embed.cmake
# Bytes as numbers, not a string literal: compilers need to accept only 4095 characters of one.
if(NOT IN OR NOT OUT)
    message(FATAL_ERROR "embed.cmake needs -DIN=FILE and -DOUT=FILE")
endif()
file(READ "${IN}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," array "${hex}")
string(REGEX REPLACE "(................................................................................)"
    "\\1\n" array "${array}")
# A char may be signed, and then values above 127 do not fit.
if(hex MATCHES "^([0-7].)*[89a-f].")
    message(FATAL_ERROR "${IN}: only ASCII is embedded")
endif()
file(WRITE "${OUT}" "/* Made from calib/sample.txt by calib/embed.cmake. */\n"
    "#include \"calib/sample.h\"\n\n"
    "const char dq_sample_text[] = {\n${array}0};\n"
    "const size_t dq_sample_text_len = ${bytes};\n")
