"""`python -m kinoray`."""

from kinoray.cli.main import main

main()
