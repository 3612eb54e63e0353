"""`python -m fedseal.flower.supernode`."""

from fedseal.flower.supernode.command import main

main()
