"""`python -m pagewire` is the command line."""

from pagewire.frontend.cli.main import main

if __name__ == "__main__":
    main()
