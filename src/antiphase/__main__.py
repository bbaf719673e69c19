"""``python -m antiphase``, which torchrun needs."""

from antiphase.cli import main

main()
