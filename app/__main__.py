"""`python -m app`: the same as the command `subagentd`."""

from app.cli import main

if __name__ == "__main__":
    main()
