from quire._program import main

main()
