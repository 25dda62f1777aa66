"""Entry point of `python -m adadepth`, which runs the same program as the command `adadepth`."""

from adadepth.run import main

if __name__ == "__main__":
    main()
