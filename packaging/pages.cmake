# pages.cmake: pages of the manual and completion, which dq itself prints, into a folder that is emptied first.
#   cmake -DDQ=build/dq -DOUT=FOLDER -P pages.cmake      FOLDER/man1/*.1, FOLDER/bash/dq, FOLDER/zsh/_dq
cmake_minimum_required(VERSION 3.25)
if(NOT DQ OR NOT OUT)
    message(FATAL_ERROR "pages.cmake needs -DDQ=PROGRAM and -DOUT=FOLDER")
endif()

# page(FILE ARGUMENT...): what `dq help ARGUMENT...` prints.
function(page file)
    execute_process(COMMAND ${DQ} help ${ARGN} OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${OUT})
file(MAKE_DIRECTORY ${OUT}/man1 ${OUT}/bash ${OUT}/zsh)
page(bash/dq --completion bash)
page(zsh/_dq --completion zsh)
page(man1/dq.1 --man)
execute_process(COMMAND ${DQ} help --commands OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" commands "${commands}")
foreach(command ${commands})
    string(REPLACE " " "-" name ${command})
    string(REPLACE " " ";" words ${command})
    page(man1/dq-${name}.1 --man ${words})
endforeach()
