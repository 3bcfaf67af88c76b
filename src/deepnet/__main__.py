"""`python -m deepnet`, the same as the command `deepnet`."""

from deepnet.cli.main import main

if __name__ == "__main__":
    main()
