"""What bench/compare.py is made of. Standard library only; PyTorch is imported by the suites that need a GPU."""
