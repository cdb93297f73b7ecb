# Run when a library was built: puts a copy of ARCHIVE at KEPT, whole or not at all. A cache folder that cannot be written
# to costs the next build its time, no more.
get_filename_component(folder ${KEPT} DIRECTORY)
string(RANDOM LENGTH 12 tag)
execute_process(COMMAND ${CMAKE_COMMAND} -E make_directory ${folder} ERROR_QUIET)
execute_process(COMMAND ${CMAKE_COMMAND} -E copy ${ARCHIVE} ${KEPT}.${tag} RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  message(STATUS "not kept for the next build: ${folder} cannot be written")
  return()
endif()
file(RENAME ${KEPT}.${tag} ${KEPT})
