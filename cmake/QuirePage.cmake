# quire_embed_page(TARGET FOLDER): the folder's files become part of the library, made again when one of them changes.
function(quire_embed_page target folder)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/web_files.cpp)
  set(script ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DOUTPUT=${output} -P ${script}
    DEPENDS ${files} ${script} COMMENT "Embedding the page" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
