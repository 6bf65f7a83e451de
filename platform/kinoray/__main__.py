"""`python -m kinoray`."""

from kinoray.cli import main

main()
