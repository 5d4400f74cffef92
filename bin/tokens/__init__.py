"""The parts of mt-tokens."""
