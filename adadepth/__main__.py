"""`python -m adadepth` is the program `adadepth`."""

from adadepth.run import main

if __name__ == "__main__":
    main()
