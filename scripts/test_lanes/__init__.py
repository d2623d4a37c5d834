"""What scripts/test does: all tests in lanes beside each other, and once more what failed."""
