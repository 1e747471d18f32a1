"""`python -m oncemq` is `oncemq`."""

from oncemq.cli.main import main

if __name__ == "__main__":
    main()
