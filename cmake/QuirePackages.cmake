# cpack: a Debian package and a tarball that runs from wherever it is unpacked. Made by scripts/package.sh, which writes the
# manual pages, completions and the packed list of changes into BUILD/manuals first.
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VENDOR quire)
set(CPACK_PACKAGE_CONTACT "the authors of quire <quire@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Inference and serving engine for language models")
set(CPACK_PACKAGE_DESCRIPTION "Serves language models out of a paged KV cache behind OpenAI's API, and\n answers in the terminal. Reads GGUF and safetensors. With the library of\n its C ABI.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/packaging/cpack.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/packaging/debian/conffiles ${CMAKE_SOURCE_DIR}/packaging/debian/postinst
    ${CMAKE_SOURCE_DIR}/packaging/debian/prerm ${CMAKE_SOURCE_DIR}/packaging/debian/postrm
    ${CMAKE_SOURCE_DIR}/packaging/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

install(DIRECTORY ${CMAKE_BINARY_DIR}/manuals/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT manuals OPTIONAL)
install(FILES ${CMAKE_BINARY_DIR}/manuals/completions/quire.bash DESTINATION share/bash-completion/completions RENAME quire
        COMPONENT manuals OPTIONAL)
install(FILES ${CMAKE_BINARY_DIR}/manuals/completions/_quire DESTINATION share/zsh/vendor-completions COMPONENT manuals OPTIONAL)
install(FILES ${CMAKE_BINARY_DIR}/manuals/completions/quire.fish DESTINATION share/fish/vendor_completions.d
        COMPONENT manuals OPTIONAL)
# Of Debian's package alone (packaging/cpack.cmake): what stands outside of the prefix.
install(FILES packaging/quire.service DESTINATION /usr/lib/systemd/system COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES packaging/serve.yaml DESTINATION /etc/quire COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES packaging/debian/copyright ${CMAKE_BINARY_DIR}/manuals/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT debian EXCLUDE_FROM_ALL)
# Of the tarball alone: the shared libraries that are not on every machine, beside the program that looks for them there.
set(quire_program $<TARGET_FILE:quire>)
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"${quire_program}\" RESOLVED_DEPENDENCIES_VAR needed
       PRE_EXCLUDE_REGEXES \"^(lib(c|m|dl|rt|pthread|gcc_s|stdc\\\\+\\\\+)\\\\.so|ld-linux)\")
  foreach(library \${needed})
    get_filename_component(file \${library} REALPATH)
    get_filename_component(name \${library} NAME)
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/quire\" TYPE FILE FILES \${file} RENAME \${name})
  endforeach()
" COMPONENT bundled EXCLUDE_FROM_ALL)
include(CPack)
