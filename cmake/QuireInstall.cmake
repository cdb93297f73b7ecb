# cmake --install BUILD --prefix DIR: the program and its licence.
include(GNUInstallDirs)
install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
